"""Whole workers in the test's loop: real engine, transfers and sessions, with steps that a gate can hold."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import zmq.asyncio

from baton.worker import Worker, WorkerParts
from baton.worker_process import PoolPlacement, WorkerSettings, worker_config, worker_info
from baton_core.step_plan import StepPlan, StepResult
from baton_core.worker_info import Role
from baton_engine.loading import EngineSettings, load_runner
from baton_engine.runner import ModelRunner
from baton_engine.sizing import KVCacheSettings
from baton_kernels.selection import select_kernels
from baton_kv.connector import KVConnector
from baton_kv.shared_memory import SharedMemoryConnector
from baton_prefill.holder_endpoint import HolderEndpoint
from tests.integration.router_cluster import MODEL

KV_CACHE_BYTES: Final = 32 * 2**20
HELD_AT_MOST_S: Final = 30.0


class Gate:
    """Holds the steps of a worker while it is closed."""

    def __init__(self) -> None:
        self._is_open = threading.Event()
        self._is_open.set()
        self.is_holding = False
        """Whether a step waits at the gate."""

    def close(self) -> None:
        self._is_open.clear()

    def open(self) -> None:
        self._is_open.set()

    def pass_through(self) -> None:
        """Called by the engine's thread.

        Raises:
            TimeoutError: the test does not open the gate.
        """
        self.is_holding = not self._is_open.is_set()
        if not self._is_open.wait(HELD_AT_MOST_S):
            raise TimeoutError("the gate stayed closed")
        self.is_holding = False


class GatedRunner(ModelRunner):
    """The runner `inner`, whose steps pass `gate` before they are computed."""

    def __init__(self, inner: ModelRunner, gate: Gate) -> None:
        super().__init__(inner.model, select_kernels(inner.model.device), inner.kv_pool)
        self._gate = gate

    def execute(self, plan: StepPlan) -> StepResult:
        self._gate.pass_through()
        return super().execute(plan)


@asynccontextmanager
async def working(
    role: Role,
    port: int,
    *,
    epoch: int = 1,
    gate: Gate | None = None,
    wrap: Callable[[KVConnector], KVConnector] = lambda connector: connector,
    peer_address: str = "tcp://127.0.0.1:0",
    max_num_batched_tokens: int = 2048,
) -> AsyncIterator[str]:
    """Serve the router at `port` as a worker with the name of its role; gives its peer address."""
    settings = WorkerSettings(
        role=role,
        engine=EngineSettings(
            model=str(MODEL),
            dtype="float32",
            kv_cache=KVCacheSettings(kv_cache_memory_bytes=KV_CACHE_BYTES),
        ),
        routers=(f"127.0.0.1:{port}",),
        max_num_batched_tokens=max_num_batched_tokens,
    )
    context = zmq.asyncio.Context()
    holder = HolderEndpoint(context, peer_address)
    placement = PoolPlacement(lambda group: wrap(SharedMemoryConnector(group, epoch)))
    engine = load_runner(settings.engine, placement.allocate)
    connector = placement.connector
    assert connector is not None
    config = worker_config(settings, engine, connector.capabilities, str(role), epoch)
    parts = WorkerParts(
        config=config,
        info=worker_info(role, config, holder.address, connector.describe()),
        runner=GatedRunner(engine.runner, gate or Gate()),
        connector=connector,
        context=context,
        holder=holder,
        routers=settings.routers,
    )
    running = asyncio.create_task(Worker(parts).run())
    try:
        yield holder.address
    finally:
        running.cancel()
        ended = await asyncio.gather(running, return_exceptions=True)
        context.destroy(linger=0)
    assert isinstance(ended[0], asyncio.CancelledError), ended
