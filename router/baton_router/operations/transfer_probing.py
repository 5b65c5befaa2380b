"""Probes the transfer between each pair of workers when both have joined, and remembers broken pairs.

Runs on the router's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from baton_core.sessions.router_messages import ToRouter, ToWorker
from baton_core.sessions.worker_info import WorkerInfo
from baton_router.core.fleet.fleet import Fleet
from baton_router.core.fleet.transfer_probes import Pair, TransferProbes
from baton_router.core.router_events import SendToWorker

_log = logging.getLogger(__name__)


class TransferProbing:
    """The transfer probes of one router.

    Args:
        name: differs from those of other routers of the same workers.
        fleet: gets each result: no request is split between the workers of a broken pair.
        send: hands a worker a message.
        is_on: whether pairs are probed.
    """

    def __init__(
        self, name: str, fleet: Fleet, send: Callable[[str, ToWorker], None], *, is_on: bool
    ) -> None:
        self._fleet = fleet
        self._send = send
        self._is_on = is_on
        self._loop = asyncio.get_running_loop()
        self._checks = TransferProbes(name, fleet.source, self._note)
        self._timer: asyncio.TimerHandle | None = None
        self._broken: dict[Pair, str] = {}
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    @property
    def broken(self) -> Mapping[Pair, str]:
        """Pairs whose blocks did not arrive at the last probe, with the reason."""
        return self._broken

    def on_joined(self, info: WorkerInfo) -> None:
        if self._is_on:
            self._apply(self._checks.join(self._loop.time(), info))

    def on_left(self, worker_id: str) -> None:
        for pair in [pair for pair in self._broken if worker_id in (pair.prefill, pair.decode)]:
            del self._broken[pair]
        self._apply(self._checks.leave(self._loop.time(), worker_id))

    def take(self, worker_id: str, message: ToRouter) -> bool:
        """Take a worker's message if it belongs to a probe; returns whether it does."""
        if not self._is_on or not self._checks.is_own(message):
            return False
        self._apply(self._checks.on_message(self._loop.time(), worker_id, message))
        return True

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Begin no probe within the block, which is entered when those that were open have ended."""
        self._checks.hold()
        try:
            await self._is_idle.wait()
            yield
        finally:
            self._apply(self._checks.resume(self._loop.time()))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _apply(self, sent: list[SendToWorker]) -> None:
        for one in sent:
            self._send(one.worker_id, one.message)
        if self._checks.num_open:
            self._is_idle.clear()
        else:
            self._is_idle.set()
        self.close()
        deadline = self._checks.next_deadline()
        self._timer = None if deadline is None else self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._apply(self._checks.on_deadline(self._loop.time()))

    def _note(self, pair: Pair, why_broken: str) -> None:
        self._fleet.mark_pair(pair.prefill, pair.decode, is_broken=bool(why_broken))
        if not why_broken:
            if self._broken.pop(pair, None) is not None:
                _log.info("blocks of worker %s arrive at worker %s again", pair.prefill, pair.decode)
            return
        if pair not in self._broken:
            _log.warning(
                "blocks of worker %s do not arrive at worker %s, whose log has more: %s; "
                "no request is split between them",
                *(pair.prefill, pair.decode, why_broken),
            )
        self._broken[pair] = why_broken
