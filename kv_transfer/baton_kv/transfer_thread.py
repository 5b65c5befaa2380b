"""The crossing between the loop thread, which decides, and the transfer thread, which moves bytes.

The loop thread submits effects of a worker's core; the events that answer them come back in batches through
one callable that is handed in.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, assert_never

from baton_core.sessions.router_messages import KVSource
from baton_core.worker.worker_events import (
    AbortPull,
    ChecksumsComputed,
    ChecksumsFailed,
    ComputeChecksums,
    Pull,
    PullAborted,
    PullDone,
)
from baton_kv.connector import KVConnector
from baton_kv.running_pull import RunningPull

MAX_BATCH: Final = 64
"""Effects taken between two steps of the connector."""
LOOK_S: Final = 2.0
"""Between two looks for pools of other workers that are gone, or are not used."""
IDLE_S: Final = 300.0
"""A pool from which nothing was pulled for so long is closed; the next pull opens it again."""
_PAUSE_S: Final = 0.1
"""Pause after a fault that may show again at once."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """A worker's pool was opened for the pull that needed it."""

    worker_id: str
    transport: str
    """Name of the transport that its blocks take."""


@dataclass(slots=True)
class _OpenPool:
    epoch: int
    used_at: float = 0.0
    """When the last pull from it began."""


TransferEffect = ComputeChecksums | Pull | AbortPull
TransferEvent = ChecksumsComputed | ChecksumsFailed | Connected | PullDone | PullAborted


class TransferThread:
    """Owns a connector from `start` to `close`. Its methods are for the loop thread and never block.

    Pulls and checksums that are not answered yet are at most `max_outstanding`: one more is refused with
    False, as is everything after `close`. Each one accepted is answered exactly once, unless `close`
    overtakes it. Aborts always find room: there is at most one per pull. A pull opens its source's pool,
    unless the pool of this epoch is open. Pools that are gone or not used are closed.

    `deliver` runs on the transfer thread and must neither block nor raise, such as
    `lambda events: loop.call_soon_threadsafe(on_events, events)`.
    """

    def __init__(
        self,
        connector: KVConnector,
        deliver: Callable[[list[TransferEvent]], None],
        *,
        max_outstanding: int = 1024,
    ) -> None:
        self._connector = connector
        self._deliver = deliver
        self._outstanding = threading.BoundedSemaphore(max_outstanding)
        self._effects: queue.SimpleQueue[TransferEffect | None] = queue.SimpleQueue()
        """None is the last one."""
        self._in_flight: dict[int, Pull] = {}
        self._pools: dict[str, _OpenPool] = {}
        """The open pools, by worker."""
        self._look_at = 0.0
        """When to look at them again."""
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="kv-transfer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def execute(self, effect: TransferEffect) -> bool:
        """Submit an effect; its answer is delivered later. False if it is refused."""
        if not isinstance(effect, AbortPull) and (
            self._is_closed or not self._outstanding.acquire(blocking=False)
        ):
            return False
        self._put(effect)
        return True

    def close(self, timeout_s: float) -> None:
        """Finish the effects before this call, drop the pulls in flight and close the connector.

        Raises:
            TimeoutError: the transfer thread is still busy after `timeout_s`.
        """
        self._is_closed = True
        self._put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"the transfer thread is still busy after {timeout_s} s")

    def _put(self, effect: TransferEffect | None) -> None:
        self._effects.put(effect)
        self._connector.wake()

    def _run(self) -> None:
        is_running = True
        try:
            while is_running:
                events: list[TransferEvent] = []
                is_running = self._take_effects(events)
                if is_running:
                    events.extend(self._poll())
                    self._close_unused(time.monotonic())
                if events:
                    self._deliver(events)
                if is_running and self._effects.empty():
                    self._wait()
        finally:
            self._connector.close()

    def _take_effects(self, events: list[TransferEvent]) -> bool:
        """Execute the effects that wait; False at the end."""
        for _ in range(MAX_BATCH):
            try:
                effect = self._effects.get_nowait()
            except queue.Empty:
                break
            if effect is None:
                return False
            match effect:
                case ComputeChecksums():
                    events.append(self._compute_checksums(effect))
                case Pull():
                    events += self._pull(effect)
                case AbortPull(pull_id=pull_id):
                    events.append(self._abort(pull_id))
                case _:
                    assert_never(effect)
        return True

    def _compute_checksums(self, request: ComputeChecksums) -> ChecksumsComputed | ChecksumsFailed:
        try:
            checksums = self._connector.compute_checksums(request.block_ids)
        except Exception as error:
            return ChecksumsFailed(request=request, error=_text(error))
        finally:
            self._outstanding.release()
        known = tuple(checksum for checksum in checksums if checksum is not None)
        if len(known) != len(request.block_ids):
            return ChecksumsFailed(request=request, error="no checksums")
        return ChecksumsComputed(request=request, checksums=known)

    def _pull(self, pull: Pull) -> list[TransferEvent]:
        events: list[TransferEvent] = []
        try:
            pool = self._pools.get(pull.source.worker_id)
            if pool is None or pool.epoch != pull.source.epoch:
                events.append(self._connect(pull.source))
            self._pools[pull.source.worker_id].used_at = time.monotonic()
            self._connector.pull(pull)
            self._in_flight[pull.pull_id] = pull
        except Exception as error:
            self._outstanding.release()
            events.append(RunningPull(pull).end(_text(error)))
        return events

    def _connect(self, source: KVSource) -> Connected:
        self._pools.pop(source.worker_id, None)
        self._connector.connect(source.worker_id, source.kv_description)
        self._pools[source.worker_id] = _OpenPool(source.epoch)
        return Connected(worker_id=source.worker_id, transport=self._connector.transport_of(source.worker_id))

    def _abort(self, pull_id: int) -> PullAborted:
        try:
            aborted = self._connector.abort(pull_id)
        except Exception as error:
            _log.error("the KV connector cannot abort a pull", exc_info=error)
            return PullAborted(pull_id=pull_id, is_fenced=False)
        if aborted.is_fenced:
            self._forget(pull_id)
        return aborted

    def _poll(self) -> list[TransferEvent]:
        try:
            ended = self._connector.poll()
        except Exception as error:
            _log.error("the KV connector failed", exc_info=error)
            if not self._in_flight:
                time.sleep(_PAUSE_S)
            return [self._give_up(pull, error) for pull in list(self._in_flight.values())]
        for done in ended:
            self._forget(done.pull_id)
        return [*ended]

    def _close_unused(self, now: float) -> None:
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        used = {pull.source.worker_id for pull in self._in_flight.values()}
        try:
            gone = self._connector.gone_peers()
            for worker_id, pool in list(self._pools.items()):
                if worker_id not in used and (worker_id in gone or pool.used_at <= now - IDLE_S):
                    del self._pools[worker_id]
                    self._connector.disconnect(worker_id)
        except Exception as error:
            _log.error("the KV connector cannot close a pool", exc_info=error)

    def _wait(self) -> None:
        try:
            self._connector.wait(LOOK_S)
        except Exception as error:
            _log.error("the KV connector cannot wait", exc_info=error)
            time.sleep(_PAUSE_S)

    def _give_up(self, pull: Pull, error: Exception) -> PullDone | PullAborted:
        """End a pull whose connector broke down: as failed if its blocks are fenced, else without a fence."""
        aborted = self._abort(pull.pull_id)
        self._forget(pull.pull_id)
        return RunningPull(pull).end(_text(error)) if aborted.is_fenced else aborted

    def _forget(self, pull_id: int) -> None:
        if self._in_flight.pop(pull_id, None) is not None:
            self._outstanding.release()


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
