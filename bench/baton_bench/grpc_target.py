"""The target of a benchmark: a Baton router over gRPC."""

from __future__ import annotations

import asyncio
from typing import Final

import grpc

from baton_bench.answers import Answer, BenchRequest
from baton_bench.targets import RequestDefaults
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from baton_service.router_access import RouterAccess

FIELDS: Final = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "logprobs"),
)
"""Fields of `RequestDefaults.sampling`; the messages of gRPC have the same names."""


class GrpcTarget:
    """A router. Made on the loop that uses it."""

    def __init__(self, address: str, access: RouterAccess, defaults: RequestDefaults) -> None:
        self._channel = access.open_async_channel(address)
        self._stub = BatonStub(self._channel)  # type: ignore[no-untyped-call]
        self._metadata = access.metadata
        self._defaults = defaults

    async def send(self, answer: Answer) -> None:
        loop = asyncio.get_running_loop()
        call = self._stub.Generate(self.message(answer.request), metadata=self._metadata)
        try:
            async for event in call:
                if event.HasField("tokens"):
                    answer.times_s.append(loop.time())
                    answer.texts.append(event.tokens.text)
                elif event.HasField("finished"):
                    answer.reported_prompt_tokens = event.finished.usage.prompt_tokens
                    answer.reported_tokens = event.finished.usage.completion_tokens
        except grpc.aio.AioRpcError as error:
            raise ValueError(f"{error.code().name}: {error.details()}") from None
        finally:
            call.cancel()
        if answer.reported_tokens is None:
            raise ValueError("the stream ended before the answer did")

    async def close(self) -> None:
        await self._channel.close()

    def message(self, request: BenchRequest) -> pb.GenerateRequest:
        defaults = self._defaults
        message = pb.GenerateRequest(model=defaults.model, session_id=request.session_id)
        params = message.sampling_params
        params.max_tokens, params.ignore_eos = request.num_tokens, defaults.ignore_eos
        for name in FIELDS:
            if name in defaults.sampling:
                setattr(params, name, defaults.sampling[name])
        if isinstance(request.prompt, str):
            message.text = request.prompt
        else:
            message.token_ids.ids.extend(request.prompt)
        return message
