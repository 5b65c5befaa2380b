"""Workers and router as processes of their own, for callers that step: `LLM` and `LLMEngine`."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import fields
from queue import Empty, SimpleQueue
from statistics import fmean
from typing import Any, Final

import grpc

from baton.config.engine_args import EngineArgs
from baton.executors.executor import ExecutorEvent, ExecutorLoad
from baton.executors.generation_events import EventReader
from baton.executors.operator_client import AdapterServing
from baton.executors.request_encoder import encode_metadata, encode_request
from baton.executors.router_client import request_error
from baton.executors.serving_process import ServingProcess
from baton_core.blocks.block_residency import RESIDENCY_BOUNDS
from baton_core.distribution import Distribution
from baton_core.requests.adapter import Adapter
from baton_core.sessions.router_messages import RequestSpec
from baton_core.step_work import StepWork
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from baton_router.requests.generation import Finished
from baton_service.router_access import Metadata
from baton_worker.controls.engine_operations import Control

_LOAD_WITHIN_S: Final = 5.0
MAX_CALLS: Final = 128
"""Requests that are open at the router at a time; the rest wait here."""


class SpawnedExecutor:
    """An executor of spawned processes; each open request is read to its end on a thread."""

    def __init__(self, args: EngineArgs) -> None:
        """Start it and wait until it is ready.

        Raises:
            InvalidConfigError: it refused a setting or the model.
            RequestError: it did not become ready.
        """
        self._process = ServingProcess(args)
        self._adapters = AdapterServing(self._process)
        self._channel = self._process.access.open_channel(self._process.address)
        self._stub = BatonStub(self._channel)  # type: ignore[no-untyped-call]
        self._threads = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="generate")
        self._events: SimpleQueue[tuple[_Call, ExecutorEvent]] = SimpleQueue()
        """Pending events: no more than the open requests' own tokens."""
        self._calls: dict[str, _Call] = {}
        self.max_model_len, self.num_blocks = self._process.max_model_len, self._process.num_blocks
        self.pooling = self._process.pooling

    def submit(self, spec: RequestSpec) -> None:
        """Take a request.

        Raises:
            InvalidRequestError: a logits processor is a function of this process.
            EngineDeadError: the processes have ended.
        """
        self._process.require_running()
        call = _Call(encode_request(spec, self.max_model_len), encode_metadata(spec))
        self._calls[spec.request_id] = call
        self._threads.submit(self._read, call, spec.adapter)

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests without further events; ended and unknown ones are ignored."""
        for request_id in request_ids:
            if (call := self._calls.pop(request_id, None)) is not None:
                call.cancel()

    def step(self) -> list[tuple[str, ExecutorEvent]]:
        """Wait for what the open requests bring; each of them brings an end."""
        events: list[tuple[str, ExecutorEvent]] = []
        arrived = [self._events.get()] if self._calls else []
        with suppress(Empty):
            while True:
                arrived.append(self._events.get_nowait())
        for call, event in arrived:
            request_id = call.request.request_id
            if self._calls.get(request_id) is call:
                events.append((request_id, event))
                if isinstance(event, Finished | Exception):
                    del self._calls[request_id]
        return events

    def control(self, command: Control) -> list[Any]:
        """Do what an operator asks of all workers.

        Raises:
            InvalidRequestError: it cannot be done now, or not in another process; the field is named.
            RequestError: a worker could not do it.
        """
        return self._adapters.ask_workers(command, has_open_requests=bool(self._calls))

    def load(self) -> ExecutorLoad:
        """Return the load that the workers reported last.

        Raises:
            RequestError: the router does not answer, or the processes have ended.
        """
        self._process.require_running()
        return ask_load(self._stub)

    def close(self) -> None:
        """End the processes."""
        self.abort(list(self._calls))
        self._channel.close()
        self._process.close()
        self._threads.shutdown(cancel_futures=True)

    def _read(self, call: _Call, adapter: Adapter | None) -> None:
        asked_s = time.monotonic()
        try:
            try:
                self._read_events(call)
            except grpc.RpcError as error:
                if adapter is None or error.code() is not grpc.StatusCode.NOT_FOUND:
                    raise
                self._adapters.serve(adapter, asked_s)
                self._read_events(call)
        except Exception as error:
            self._events.put((call, request_error(error)))

    def _read_events(self, call: _Call) -> None:
        reader = EventReader()
        for message in call.open(self._stub):
            if (event := reader.read(message)) is not None:
                self._events.put((call, event))


class _Call:
    """One request at the router, which may be cancelled before its thread opens it."""

    def __init__(self, request: pb.GenerateRequest, metadata: Metadata) -> None:
        self.request = request
        self._metadata = metadata
        self._lock = threading.Lock()
        self._call: Any = None
        self._is_cancelled = False

    def open(self, stub: BatonStub) -> Any:
        """Begin; the events follow."""
        with self._lock:
            if self._is_cancelled:
                return ()
            self._call = stub.Generate(self.request, metadata=self._metadata)
            return self._call

    def cancel(self) -> None:
        with self._lock:
            self._is_cancelled = True
            if self._call is not None:
                self._call.cancel()


def ask_load(stub: BatonStub) -> ExecutorLoad:
    """Ask a router for the load of its workers.

    Raises:
        RequestError: it does not answer.
    """
    try:
        return read_load(stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=_LOAD_WITHIN_S))
    except grpc.RpcError as error:
        raise request_error(error) from None


def read_load(info: pb.ModelInfo) -> ExecutorLoad:
    """Sum the loads of all workers that a router reports."""
    num_blocks = sum(worker.num_blocks for worker in info.workers)
    num_free = sum(worker.num_available_blocks for worker in info.workers)
    return ExecutorLoad(
        num_running=sum(worker.num_running for worker in info.workers),
        num_waiting=sum(worker.num_waiting for worker in info.workers),
        kv_cache_usage=1.0 - num_free / max(num_blocks, 1),
        work=_mean_work([worker.work for worker in info.workers if worker.HasField("work")]),
        block_residency=_all_stays([worker.block_residency for worker in info.workers]),
    )


def _mean_work(told: Sequence[pb.Work]) -> StepWork | None:
    """Return the work of an accelerator; each worker has as many."""
    if not told:
        return None
    means = {one.name: fmean(getattr(work, one.name) for work in told) for one in fields(StepWork)}
    return StepWork(**means)


def _all_stays(told: Sequence[Sequence[pb.BucketCounts]]) -> tuple[Distribution, ...]:
    """Return the stays of blocks of all workers that measure them, as one tells its own."""
    kinds = zip(*(stays for stays in told if stays), strict=True)
    return tuple(
        Distribution.of(
            RESIDENCY_BOUNDS,
            [sum(counts) for counts in zip(*(one.counts for one in kind), strict=True)],
            sum(one.total for one in kind),
        )
        for kind in kinds
    )
