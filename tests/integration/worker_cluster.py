"""A router and whole workers in the test's loop: all of it real, with steps that a gate can hold."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import grpc
import zmq.asyncio

from baton import SamplingParams
from baton_core.requests.attempt_names import name_at_client
from baton_core.sessions.router_messages import ToRouter
from baton_core.sessions.session import SessionTimings
from baton_core.sessions.worker_info import Role, WorkerLoad
from baton_core.worker.step_plan import StepPlan
from baton_engine.engine_settings import EngineSettings
from baton_engine.sampling.sampling_state import Grammars
from baton_engine.sizing import KVCacheSettings
from baton_engine.steps.step_pipeline import Launched
from baton_kv.backends import CONNECTORS
from baton_kv.connector import KVConnector
from baton_kv.row_copies import copy_rows
from baton_kv.transport import Listen, Transport
from baton_prefill.producer_endpoint import ProducerEndpoint
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from baton_service.redis.redis_settings import RedisSettings
from baton_service.router_access import RouterAccess
from baton_worker.core.scheduler_config import SchedulerConfig
from baton_worker.engine.resident_engine import ResidentEngine
from baton_worker.pool_placement import PoolPlacement
from baton_worker.redis.worker_sharing import open_worker_share
from baton_worker.worker_process import (
    WorkerSettings,
    grammar_compiler,
    worker_config,
    worker_controls,
    worker_info,
)
from baton_worker.worker_shell import GrammarBackend, Worker, WorkerParts
from tests.e2e.calls import ask
from tests.integration.router_cluster import MODEL, PATIENT_S, serving
from tests.integration.scripted_worker import until

KV_CACHE_BYTES: Final = 32 * 2**20
HELD_AT_MOST_S: Final = 60.0


class Gate:
    """Holds the steps of a worker while it is closed."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._num_let_through = math.inf
        self.is_holding = False
        """True while a step waits at the gate."""

    def close(self) -> None:
        self.let_through(0)

    def open(self) -> None:
        self.let_through(math.inf)

    def let_through(self, num_steps: float) -> None:
        """Be open for so many steps, and closed then."""
        with self._condition:
            self._num_let_through = num_steps
            self.is_holding = self.is_holding and not num_steps
            self._condition.notify_all()

    def pass_through(self) -> None:
        """Called by the engine's thread.

        Raises:
            TimeoutError: the test does not open the gate.
        """
        with self._condition:
            self.is_holding = not self._num_let_through
            if not self._condition.wait_for(lambda: self._num_let_through, HELD_AT_MOST_S):
                raise TimeoutError("the gate stayed closed")
            self._num_let_through -= 1
            self.is_holding = False


class GatedEngine(ResidentEngine):
    """An engine whose steps pass `gate` before they are computed."""

    def __init__(
        self, settings: EngineSettings, grammars: Grammars, placement: PoolPlacement, gate: Gate
    ) -> None:
        super().__init__(
            settings, grammars, allocate_pool=placement.allocate, give_back_pool=placement.give_back
        )
        self._gate = gate

    def launch(self, plan: StepPlan) -> Launched:
        self._gate.pass_through()
        return super().launch(plan)


@asynccontextmanager
async def working(role: Role, port: int, **settings: Any) -> AsyncIterator[str]:
    """Serve the router at `port` as a worker, with settings of `made`; gives its peer address."""
    async with made(role, port, **settings) as (worker, peer_address):
        running = asyncio.create_task(worker.run())
        try:
            yield peer_address
        finally:
            running.cancel()
            ended = await asyncio.gather(running, return_exceptions=True)
        assert isinstance(ended[0], asyncio.CancelledError), ended


@asynccontextmanager
async def made(
    role: Role,
    port: int,
    *,
    also: tuple[int, ...] = (),
    name: str = "",
    redis: RedisSettings | None = None,
    epoch: int = 1,
    block_size: int = 32,
    gate: Gate | None = None,
    wrap: Callable[[KVConnector], KVConnector] = lambda connector: connector,
    peer_address: str = "tcp://127.0.0.1:0",
    max_num_batched_tokens: int = 2048,
    max_num_seqs: int = 128,
    kv_transport: Transport = Transport.SHARED_MEMORY,
    allow_functions: bool = False,
    profiler_folder: str = "",
    hold: Callable[[GrammarBackend], GrammarBackend] = lambda grammars: grammars,
    key: str = "",
    async_scheduling: bool | None = None,
    engine: Mapping[str, Any] = MappingProxyType({}),
    tokenizer: str | None = None,
    structured_outputs_backend: str = "auto",
) -> AsyncIterator[tuple[Worker, str]]:
    """A worker for the routers at `port` and `also`, or those in `redis`; named by its role if not otherwise.

    `engine` has further fields of `EngineSettings`. Gives it and its peer address.
    """
    fields = {
        "model": str(MODEL),
        "dtype": "float32",
        "block_size": block_size,
        "kv_cache": KVCacheSettings(kv_cache_memory_bytes=KV_CACHE_BYTES),
        "async_scheduling": async_scheduling,
    }
    settings = WorkerSettings(
        role=role,
        engine=EngineSettings(**{**fields, **engine}),
        routers=tuple(f"127.0.0.1:{one}" for one in (port, *also) if one),
        redis=redis or RedisSettings(),
        scheduler=SchedulerConfig(max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs),
        allow_functions=allow_functions,
        profiler_folder=profiler_folder,
        tokenizer=tokenizer,
        structured_outputs_backend=structured_outputs_backend,
    )
    context = zmq.asyncio.Context()
    producer = ProducerEndpoint(context, peer_address)
    placement = PoolPlacement(lambda spec: wrap(CONNECTORS[kv_transport](spec, epoch, Listen(), copy_rows)))
    forms = grammar_compiler(settings, warms_up=False)
    resident = GatedEngine(settings.engine, forms, placement, gate or Gate())
    connector = placement.connector
    assert connector is not None
    config = worker_config(settings, resident.loaded, connector.capabilities, name or str(role), epoch)
    info = worker_info(role, config, producer.address, connector.describe())
    parts = WorkerParts(
        config=config,
        info=info,
        engine=resident,
        controls=worker_controls(settings, resident),
        connector=connector,
        context=context,
        producer=producer,
        grammars=hold(forms),
        routers=settings.routers,
        share=open_worker_share(settings.redis, info),
        access=RouterAccess(key=key),
        session_timings=SessionTimings(dead_after_s=PATIENT_S),
    )
    try:
        yield Worker(parts), producer.address
    finally:
        context.destroy(linger=0)


async def refusal_of(worker: Worker) -> str:
    """Run a worker until its router refuses it; returns what its /health says."""
    running = asyncio.create_task(worker.run())
    try:
        await until(lambda: running.done() or "refuses this worker" in worker.metrics.problem)
        assert not running.done(), "it tries on"
        return worker.metrics.problem
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@dataclass(slots=True)
class Said:
    """The workers' messages to the router's core so far, and the last load of each."""

    messages: list[ToRouter] = field(default_factory=list)
    speakers: list[str] = field(default_factory=list)
    """The worker of each message."""
    loads: dict[str, WorkerLoad] = field(default_factory=dict)

    def has(self, kind: type[ToRouter], request_id: str) -> bool:
        return self.find(kind, request_id) is not None

    def find(self, kind: type[ToRouter], request_id: str) -> Any:
        of_kind = (message for message in self.messages if isinstance(message, kind))
        return next((m for m in of_kind if name_at_client(m.request_id) == request_id), None)

    def workers_that_said(self, kind: type[ToRouter]) -> set[str]:
        """Names of the workers that sent a message of this type."""
        pairs = zip(self.messages, self.speakers, strict=True)
        return {speaker for message, speaker in pairs if isinstance(message, kind)}

    def num_blocks(self, name: str) -> int:
        """Blocks that a worker has available, as it said last."""
        return self.loads[name].num_available_blocks


@dataclass(slots=True)
class Cluster:
    """A router with a port, a client of it, and what its workers say."""

    port: int
    stub: BatonStub
    said: Said

    def ask(self, request_id: str, prompt: list[int], params: SamplingParams) -> Any:
        request = ask(prompt, params)
        request.request_id = request_id
        return self.stub.Generate(request)

    async def wait_for_idle(self, *names: str) -> None:
        """Wait until exactly these workers are registered, and say from now on that all blocks are free."""
        self.said.loads.clear()
        await until(lambda: set(names) <= self.said.loads.keys())
        await eventually(lambda: self._are_idle(names))

    async def _are_idle(self, names: tuple[str, ...]) -> bool:
        workers = (await self.stub.GetModelInfo(pb.GetModelInfoRequest())).workers
        return {worker.worker_id for worker in workers} == set(names) and all(
            (worker.num_running, worker.num_waiting, worker.num_available_blocks) == (0, 0, worker.num_blocks)
            for worker in workers
        )


@asynccontextmanager
async def routing(said: Said, *, split: str = "always", **settings: Any) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(split=split, **settings))
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}")
        yield Cluster(server.grpc_port, BatonStub(await stack.enter_async_context(channel)), said)


async def eventually(condition: Callable[[], Awaitable[bool]], within_s: float = 30.0) -> None:
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110 (what is asked raises no event)
            await asyncio.sleep(0.01)
