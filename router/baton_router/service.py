"""The service that clients call. One coroutine per call, on the router's loop."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc

from baton_core.errors import ErrorCode, RequestError
from baton_core.worker_info import WorkerInfo, WorkerLoad
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1 import baton_pb2_grpc
from baton_router.client_stream import ClientStream
from baton_router.model_folder import ModelFolder
from baton_router.prompt_reader import PromptReader
from baton_router.router import Router
from baton_router.tokenization import Tokenizer

MAX_CALLS: Final = 8192
"""Calls open at a time, those included whose request is over and whose client does not read."""
_GRACE_S: Final = 1.0
"""After a call's deadline, within which the core's own error, which says more, comes first."""


class BatonService(baton_pb2_grpc.BatonServicer):
    """Serves one model through `router`.

    Args:
        timeout_s: for calls without a deadline of their own.
    """

    def __init__(
        self,
        model_name: str,
        model: ModelFolder,
        tokenizer: Tokenizer,
        *,
        prompts: PromptReader,
        router: Router,
        timeout_s: float,
    ) -> None:
        self._model_name = model_name
        self._model = model
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._router = router
        self._timeout_s = timeout_s
        self._num_calls = 0
        self._is_draining = False
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    async def Generate(  # noqa: N802 (name of the protocol)
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        self._require_open()
        self._num_calls += 1
        self._is_idle.clear()
        try:
            await self._generate(request, context)
        finally:
            self._num_calls -= 1
            if not self._num_calls:
                self._is_idle.set()

    async def GetModelInfo(  # noqa: N802 (name of the protocol)
        self, request: pb.GetModelInfoRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ModelInfo:
        return pb.ModelInfo(
            model=self._model_name,
            max_model_len=self._max_model_len(),
            vocab_size=self._model.vocab_size,
            is_ready=self._router.is_ready,
            workers=[_describe(info, load) for info, load in self._router.fleet.workers()],
        )

    async def drain(self, within_s: float) -> None:
        """Refuse new requests and wait until the last client has its end, or `within_s` is over."""
        self._is_draining = True
        try:
            async with asyncio.timeout(within_s):
                await self._is_idle.wait()
        except TimeoutError:
            return

    def _require_open(self) -> None:
        if self._is_draining:
            raise RequestError(ErrorCode.UNAVAILABLE, "the router shuts down")
        if self._num_calls >= MAX_CALLS:
            raise RequestError(
                ErrorCode.OVERLOADED, f"{self._num_calls} calls are open; allowed: {MAX_CALLS}"
            )

    async def _generate(
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        remaining_s = context.time_remaining()
        timeout_s = self._timeout_s if remaining_s is None else remaining_s
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                spec = await self._prompts.read(request, max_model_len=self._max_model_len())
            async with asyncio.timeout_at(deadline + _GRACE_S):
                await self._stream(ClientStream(spec, self._tokenizer), deadline, context)
        except TimeoutError:
            text = f"not finished within {timeout_s:.3g} s"
            raise RequestError(ErrorCode.DEADLINE_EXCEEDED, text) from None

    async def _stream(
        self, stream: ClientStream, deadline: float, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        self._router.submit(stream, max(0.0, deadline - asyncio.get_running_loop().time()))
        try:
            while (event := await stream.next_event()) is not None:
                await context.write(event)
        except grpc.aio.BaseError as error:
            # The client is gone, and gRPC is about to cancel this call; no status can be sent.
            raise asyncio.CancelledError from error
        finally:
            self._router.abandon(stream)

    def _max_model_len(self) -> int:
        """What every worker can hold; without workers what the model can."""
        limit = self._model.max_position_embeddings
        return min(self._router.fleet.max_model_len or limit, limit)


def _describe(info: WorkerInfo, load: WorkerLoad) -> pb.ModelInfo.Worker:
    return pb.ModelInfo.Worker(
        worker_id=info.worker_id,
        role=info.role,
        num_blocks=info.num_blocks,
        num_available_blocks=load.num_available_blocks,
        num_running=load.num_running,
        num_waiting=load.num_waiting,
    )
