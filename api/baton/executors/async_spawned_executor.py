"""Workers and router as processes of their own, for asynchronous callers: one gRPC call for each request."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import grpc

from baton.config.engine_args import EngineArgs
from baton.executors.executor import ExecutorLoad, Inbox
from baton.executors.generation_events import EventReader
from baton.executors.operator_client import AdapterServing
from baton.executors.request_encoder import encode_metadata, encode_request
from baton.executors.router_client import request_error
from baton.executors.serving_process import ServingProcess
from baton.executors.spawned_executor import ask_load, read_load
from baton_core.errors import EngineDeadError, ErrorCode
from baton_core.sessions.router_messages import RequestSpec
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from baton_service.router_access import Metadata
from baton_worker.controls.engine_operations import Control


class AsyncSpawnedExecutor:
    """An executor of spawned processes. Each call is read as it comes: a slow caller delays no other."""

    def __init__(self, args: EngineArgs) -> None:
        """Start it and wait until it is ready.

        Raises:
            InvalidConfigError: it refused a setting or the model.
            RequestError: it did not become ready.
        """
        self._process = ServingProcess(args)
        self._adapters = AdapterServing(self._process)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channel: grpc.aio.Channel | None = None
        self._calls: dict[str, tuple[asyncio.Task[None], Inbox]] = {}
        """The calls whose streams have not ended, by the request's id."""
        self.max_model_len, self.num_blocks = self._process.max_model_len, self._process.num_blocks
        self.pooling = self._process.pooling

    @property
    def is_running(self) -> bool:
        return self._process.is_running

    def submit(self, spec: RequestSpec, inbox: Inbox) -> None:
        """Take a request; its events, or its error, come into the inbox.

        Raises:
            InvalidRequestError: a logits processor is a function of this process.
            EngineDeadError: the processes have ended.
        """
        self._process.require_running()
        request = encode_request(spec, self.max_model_len)
        task = asyncio.create_task(self._read(request, spec, inbox))
        self._calls[spec.request_id] = task, inbox
        task.add_done_callback(lambda done: self._forget(spec.request_id, done))

    def abort(self, request_id: str) -> None:
        """End a request without further events."""
        if (call := self._calls.get(request_id)) is not None:
            call[0].cancel()

    async def control(self, command: Control) -> list[Any]:
        """Do what an operator asks of all workers.

        Raises:
            InvalidRequestError: it cannot be done now, or not in another process; the field is named.
            RequestError: a worker could not do it.
        """
        has_open = any(not inbox.has_ended for _, inbox in self._calls.values())
        return await asyncio.to_thread(self._adapters.ask_workers, command, has_open_requests=has_open)

    async def load(self) -> ExecutorLoad:
        """Return the load that the workers reported last.

        Raises:
            RequestError: the router does not answer, or the processes have ended.
        """
        self._process.require_running()
        request, metadata = pb.GetModelInfoRequest(), self._process.access.metadata
        try:
            return read_load(await self._stub().GetModelInfo(request, metadata=metadata))
        except grpc.RpcError as error:
            raise request_error(error) from None

    def load_now(self) -> ExecutorLoad:
        """Return the same, from any thread.

        Raises:
            RequestError: the router does not answer, or the processes have ended.
        """
        self._process.require_running()
        with self._process.access.open_channel(self._process.address) as channel:
            return ask_load(BatonStub(channel))  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """End the processes; open requests end with an error."""
        for task, inbox in list(self._calls.values()):
            with suppress(RuntimeError):  # its loop is closed: nobody reads it
                inbox.loop.call_soon_threadsafe(_end, task, inbox)
        self._process.close()

    async def _read(self, request: pb.GenerateRequest, spec: RequestSpec, inbox: Inbox) -> None:
        asked_s, adapter = time.monotonic(), spec.adapter
        metadata = (*self._process.access.metadata, *encode_metadata(spec))
        try:
            try:
                await self._read_events(request, metadata, inbox)
            except grpc.RpcError as error:
                if adapter is None or error.code() is not grpc.StatusCode.NOT_FOUND:
                    raise
                await asyncio.to_thread(self._adapters.serve, adapter, asked_s)
                await self._read_events(request, metadata, inbox)
        except Exception as error:
            inbox.put((request_error(error),))

    async def _read_events(self, request: pb.GenerateRequest, metadata: Metadata, inbox: Inbox) -> None:
        call = self._stub().Generate(request, metadata=metadata)
        reader = EventReader()
        try:
            async for message in call:
                if (event := reader.read(message)) is not None:
                    inbox.put((event,))
        finally:
            call.cancel()

    def _stub(self) -> BatonStub:
        """A stub of the running loop; the channel of one that has ended went with it."""
        loop = asyncio.get_running_loop()
        if self._channel is None or self._loop is not loop:
            self._loop = loop
            self._channel = self._process.access.open_async_channel(self._process.address)
        return BatonStub(self._channel)  # type: ignore[no-untyped-call]

    def _forget(self, request_id: str, task: asyncio.Task[None]) -> None:
        if self._calls.get(request_id, (None,))[0] is task:
            del self._calls[request_id]


def _end(task: asyncio.Task[None], inbox: Inbox) -> None:
    task.cancel()
    if not inbox.has_ended:
        inbox.put((EngineDeadError(ErrorCode.UNAVAILABLE, "the engine is shut down"),))
