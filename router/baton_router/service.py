"""The service that clients call. One coroutine per call, on the router's loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeAlias

import grpc

from baton_core.errors import ErrorCode, RequestError
from baton_core.worker_info import WorkerInfo, WorkerLoad
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1 import baton_pb2_grpc
from baton_router.client_stream import ClientStream
from baton_router.model_folder import ModelFolder
from baton_router.prompt_reader import PromptReader
from baton_router.router import Router
from baton_router.text_converter import TextConverter
from baton_router.tokenization import Tokenizer
from baton_router.tokenizing_threads import TokenizingThreads

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

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
        model_names: Sequence[str],
        model: ModelFolder,
        tokenizer: Tokenizer,
        *,
        threads: TokenizingThreads,
        router: Router,
        timeout_s: float,
    ) -> None:
        self._model_names = model_names
        self._model = model
        self._tokenizer = tokenizer
        self._threads = threads
        self._prompts = PromptReader(model_names, model, tokenizer, threads)
        self._texts = TextConverter(model_names, model, tokenizer)
        self._router = router
        self._timeout_s = timeout_s
        self._num_calls = 0
        self._is_draining = False
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    async def Generate(  # noqa: N802 (name of the protocol)
        self, request: pb.GenerateRequest, context: _Context
    ) -> None:
        with self._open_call():
            timeout_s = self._timeout_of(context)
            deadline = asyncio.get_running_loop().time() + timeout_s
            async with _ends_within(timeout_s):
                spec = await self._prompts.read(request, max_model_len=self._max_model_len())
            async with _ends_within(timeout_s, deadline + _GRACE_S):
                await self._stream(ClientStream(spec, self._tokenizer), deadline, context)

    async def Tokenize(  # noqa: N802 (name of the protocol)
        self, request: pb.TokenizeRequest, context: _Context
    ) -> pb.TokenizeResponse:
        with self._open_call():
            async with _ends_within(self._timeout_of(context)):
                ids = await self._threads.run(self._texts.tokenize, request)
        return pb.TokenizeResponse(token_ids=ids, count=len(ids), max_model_len=self._max_model_len())

    async def Detokenize(  # noqa: N802 (name of the protocol)
        self, request: pb.DetokenizeRequest, context: _Context
    ) -> pb.DetokenizeResponse:
        with self._open_call():
            async with _ends_within(self._timeout_of(context)):
                text = await self._threads.run(self._texts.detokenize, request)
        return pb.DetokenizeResponse(text=text, count=len(request.token_ids))

    async def GetModelInfo(  # noqa: N802 (name of the protocol)
        self, request: pb.GetModelInfoRequest, context: _Context
    ) -> pb.ModelInfo:
        return pb.ModelInfo(
            model=self._model_names[0],
            model_names=self._model_names,
            max_model_len=self._max_model_len(),
            vocab_size=self._model.vocab_size,
            has_chat_template=self._tokenizer.has_chat_template,
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

    @contextmanager
    def _open_call(self) -> Iterator[None]:
        """Count a call, which `drain` waits for.

        Raises:
            RequestError: UNAVAILABLE, the router shuts down; OVERLOADED, too many calls are open.
        """
        if self._is_draining:
            raise RequestError(ErrorCode.UNAVAILABLE, "the router shuts down")
        if self._num_calls >= MAX_CALLS:
            text = f"{self._num_calls} calls are open; allowed: {MAX_CALLS}"
            raise RequestError(ErrorCode.OVERLOADED, text)
        self._num_calls += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self._num_calls -= 1
            if not self._num_calls:
                self._is_idle.set()

    def _timeout_of(self, context: _Context) -> float:
        """Seconds until the deadline of the client, or the router's own."""
        remaining_s: float | None = context.time_remaining()
        return self._timeout_s if remaining_s is None else remaining_s

    async def _stream(self, stream: ClientStream, deadline: float, context: _Context) -> None:
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
        return self._router.fleet.max_model_len or self._model.max_position_embeddings


@asynccontextmanager
async def _ends_within(timeout_s: float, at: float | None = None) -> AsyncIterator[None]:
    """End what takes longer than `timeout_s`, at the loop's time `at` if that is given.

    Raises:
        RequestError: DEADLINE_EXCEEDED.
    """
    try:
        async with asyncio.timeout(timeout_s) if at is None else asyncio.timeout_at(at):
            yield
    except TimeoutError:
        raise RequestError(ErrorCode.DEADLINE_EXCEEDED, f"not finished within {timeout_s:.3g} s") from None


def _describe(info: WorkerInfo, load: WorkerLoad) -> pb.ModelInfo.Worker:
    return pb.ModelInfo.Worker(
        worker_id=info.worker_id,
        role=info.role,
        num_blocks=info.num_blocks,
        num_available_blocks=load.num_available_blocks,
        num_running=load.num_running,
        num_waiting=load.num_waiting,
    )
