"""The shell of a worker: one loop that feeds the core and executes its effects.

The loop thread owns the core. The engine thread computes steps, the transfer thread moves KV; both hand
their results back to the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

import zmq.asyncio

from baton.kv_transfer import KVTransfers
from baton_core.peer_messages import ToHolder, ToPuller
from baton_core.request_flow import name_at_client
from baton_core.router_messages import ToRouter, ToWorker, Transferred
from baton_core.step_plan import StepResult
from baton_core.worker_config import WorkerConfig
from baton_core.worker_core import WorkerCore
from baton_core.worker_events import (
    AbortPull,
    HolderSaid,
    Pull,
    PullerSaid,
    RouterJoined,
    RouterLost,
    RouterSaid,
    Seal,
    SendToHolder,
    SendToPuller,
    SendToRouter,
    StepDone,
    StepFailed,
    WorkerEffect,
    WorkerEvent,
)
from baton_core.worker_info import WorkerInfo, WorkerLoad
from baton_decode.puller_endpoint import PullerEndpoint
from baton_engine.engine_thread import EngineThread
from baton_engine.runner import ModelRunner
from baton_kv.connector import KVConnector
from baton_prefill.holder_endpoint import HolderEndpoint
from baton_service.session_client import RouterCallbacks, SessionClient

_CLOSE_WITHIN_S = 5.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    """What a worker is put together from. The holder's endpoint is bound before the model is loaded."""

    config: WorkerConfig
    info: WorkerInfo
    runner: ModelRunner
    connector: KVConnector
    context: zmq.asyncio.Context
    holder: HolderEndpoint
    routers: Sequence[str]
    """Addresses (`host:port`) of the routers to serve."""


class Worker:
    """Serves routers until cancelled. Make it on the loop that runs it."""

    def __init__(self, parts: WorkerParts) -> None:
        self._loop = asyncio.get_running_loop()
        self._core = WorkerCore(parts.config)
        self._holder = parts.holder
        self._puller = PullerEndpoint(
            parts.context, f"{parts.info.worker_id}-{parts.info.epoch:x}", self._on_holder_message
        )
        self._transfers = KVTransfers(parts.connector, self.on_event)
        self._engine = EngineThread(parts.runner.execute, self._deliver_step)
        callbacks = RouterCallbacks(
            on_joined=lambda router_id: self.on_event(RouterJoined(router_id=router_id)),
            on_message=self._on_router_message,
            on_lost=lambda router_id: self.on_event(RouterLost(router_id=router_id)),
        )
        self._clients = [
            SessionClient(address, parts.info, self._load, callbacks) for address in parts.routers
        ]
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Serve until cancelled, then say farewell to the routers and stop the threads.

        Raises:
            IncompatibleWorkerError: a router rejects this worker.
        """
        self._engine.start()
        self._transfers.start()
        listening = asyncio.create_task(self._holder.receive(self._on_puller_message))
        sessions = [asyncio.create_task(client.run()) for client in self._clients]
        try:
            done, _ = await asyncio.wait((listening, *sessions), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await asyncio.gather(*(client.close() for client in self._clients))
            for task in (listening, *sessions):
                task.cancel()
            await asyncio.gather(listening, *sessions, return_exceptions=True)
            await self._close()

    def on_event(self, event: WorkerEvent) -> None:
        """Feed the core and do what it says."""
        self._execute(self._core.on_event(self._loop.time(), event))
        self._go_on()

    # --- what comes in ---

    def _on_router_message(self, router_id: str, message: ToWorker) -> None:
        self.on_event(RouterSaid(router_id=router_id, message=message))

    def _on_puller_message(self, peer_id: bytes, message: ToHolder) -> None:
        self.on_event(PullerSaid(peer_id=peer_id, message=message))

    def _on_holder_message(self, message: ToPuller) -> None:
        self.on_event(HolderSaid(message=message))

    def _deliver_step(self, result: StepResult | Exception) -> None:
        self._loop.call_soon_threadsafe(self._on_step, result)

    def _on_step(self, result: StepResult | Exception) -> None:
        if isinstance(result, StepResult):
            self.on_event(StepDone(result=result))
            return
        _log.error("a step failed", exc_info=result)
        self.on_event(StepFailed(message=f"the engine failed: {type(result).__name__}: {result}"))

    def _on_deadline(self) -> None:
        self._timer = None
        self._execute(self._core.on_deadline(self._loop.time()))
        self._go_on()

    def _load(self) -> WorkerLoad:
        return self._core.load(self._loop.time())

    # --- what goes out ---

    def _go_on(self) -> None:
        """Keep the engine busy and the timer set."""
        plan = self._core.schedule(self._loop.time())
        if plan is not None:
            self._engine.submit(plan)
        if self._timer is not None:
            self._timer.cancel()
        deadline = self._core.next_deadline()
        self._timer = None if deadline is None else self._loop.call_at(deadline, self._on_deadline)

    def _execute(self, effects: list[WorkerEffect]) -> None:
        for effect in effects:
            match effect:
                case SendToRouter(router_id=router_id, message=message):
                    self._send_to_router(router_id, message)
                case SendToPuller(peer_id=peer_id, message=message):
                    self._holder.send(peer_id, message)
                case SendToHolder(source=source, message=message):
                    self._puller.send(source.peer_address, message)
                case Seal() | Pull() | AbortPull():
                    self._transfers.execute(effect)
                case _:
                    assert_never(effect)

    def _send_to_router(self, router_id: str, message: ToRouter) -> None:
        if isinstance(message, Transferred) and message.num_recomputed_tokens:
            name = {"request_id": name_at_client(message.request_id)}
            _log.warning("%d prompt tokens are computed again", message.num_recomputed_tokens, extra=name)
        for client in self._clients:
            client.send(router_id, message)

    async def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._puller.close()
        self._holder.close()
        await asyncio.to_thread(self._engine.close, _CLOSE_WITHIN_S)
        await asyncio.to_thread(self._transfers.close, _CLOSE_WITHIN_S)
