"""The gRPC service that clients call: protobuf to the front door and back. One coroutine per call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, TypeAlias

import grpc

from baton_core.sessions.worker_info import WorkerInfo, WorkerLoad
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1 import baton_pb2_grpc
from baton_router.client_stream import ClientStream
from baton_router.front_door import FrontDoor
from baton_router.generation import Finished
from baton_router.grpc_context import read_context
from baton_router.trace_context import HEADER as TRACEPARENT
from baton_router.wire_clients import encode_event, read_request, read_tokenize_prompt
from baton_service.keys import Keys

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class BatonService(baton_pb2_grpc.BatonServicer):
    """Serves one model; a client's deadline is its request's deadline."""

    def __init__(self, front_door: FrontDoor, keys: Keys) -> None:
        self._front_door = front_door
        self._keys = keys

    async def Generate(  # noqa: N802 (name of the protocol)
        self, request: pb.GenerateRequest, context: _Context
    ) -> None:
        its_context = read_context(request, context, self._keys)
        generation = replace(read_request(request), context=its_context)
        try:
            async with self._front_door.generate(generation, context.time_remaining()) as stream:
                if traceparent := stream.spec.traceparent:
                    await context.send_initial_metadata(((TRACEPARENT, traceparent),))
                async for event in _events_of(stream):
                    await context.write(event)
        except grpc.aio.BaseError as error:
            # The client is gone, and gRPC is about to cancel this call; no status can be sent.
            raise asyncio.CancelledError from error

    async def Tokenize(  # noqa: N802 (name of the protocol)
        self, request: pb.TokenizeRequest, context: _Context
    ) -> pb.TokenizeResponse:
        prompt = read_tokenize_prompt(request)
        ids = await self._front_door.tokenize(
            prompt,
            model=request.model,
            add_special_tokens=request.add_special_tokens if request.HasField("add_special_tokens") else None,
            timeout_s=context.time_remaining(),
        )
        limit = self._front_door.max_model_len
        return pb.TokenizeResponse(token_ids=ids, count=len(ids), max_model_len=limit)

    async def Detokenize(  # noqa: N802 (name of the protocol)
        self, request: pb.DetokenizeRequest, context: _Context
    ) -> pb.DetokenizeResponse:
        text = await self._front_door.detokenize(
            request.token_ids,
            model=request.model,
            skip_special_tokens=request.skip_special_tokens,
            timeout_s=context.time_remaining(),
        )
        return pb.DetokenizeResponse(text=text, count=len(request.token_ids))

    async def GetModelInfo(  # noqa: N802 (name of the protocol)
        self, request: pb.GetModelInfoRequest, context: _Context
    ) -> pb.ModelInfo:
        door = self._front_door
        return pb.ModelInfo(
            model=door.model_names[0],
            model_names=door.model_names,
            max_model_len=door.max_model_len,
            vocab_size=door.model.vocab_size,
            has_chat_template=door.tokenizer.has_chat_template,
            is_ready=door.router.is_ready,
            workers=[_describe(info, load) for info, load in door.router.fleet.workers()],
        )


async def _events_of(stream: ClientStream) -> AsyncIterator[pb.GenerateEvent]:
    """What is new to the client; the first event bears the resume token."""
    token = stream.resume_token
    while (event := await stream.next_event()) is not None:
        if not isinstance(event, Finished) and event.is_received:
            continue
        message = encode_event(event)
        message.resume_token, token = token, ""
        yield message


def _describe(info: WorkerInfo, load: WorkerLoad) -> pb.ModelInfo.Worker:
    return pb.ModelInfo.Worker(
        worker_id=info.worker_id,
        role=load.role or info.role,
        num_blocks=info.num_blocks,
        num_available_blocks=load.num_available_blocks,
        num_running=load.num_running,
        num_waiting=load.num_waiting,
        is_draining=load.is_draining,
        is_asleep=load.is_asleep,
        is_role_fixed=load.is_role_fixed,
        num_queued_tokens=load.num_queued_tokens,
        prefill_tokens_per_s=load.rates.prefill_tokens_per_s,
        decode_step_s=load.rates.decode_step_s,
        pull_bytes_per_s=load.rates.pull_bytes_per_s,
    )
