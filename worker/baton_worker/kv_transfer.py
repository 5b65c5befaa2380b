"""Between a worker's core and its transfer thread: deadlines for checksums, and what is logged of pulls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from baton_core.requests.attempt_names import name_at_client
from baton_core.worker.worker_events import (
    AbortPull,
    ChecksumsComputed,
    ChecksumsFailed,
    ComputeChecksums,
    Pull,
    PullAborted,
    PullDone,
    WorkerEvent,
)
from baton_kv.connector import KVConnector
from baton_kv.transfer_thread import Connected, TransferEffect, TransferEvent, TransferThread
from baton_worker.first_pulls import FirstPulls

_CHECKSUMS_WITHIN_S: Final = 8.0
"""Deadline for checksums; a consumer waits no longer for a copy either."""
_BUSY: Final = "too many transfers wait"
_log = logging.getLogger(__name__)


class KVTransfers:
    """Executes what the core decides about KV bytes. Used on the worker's loop."""

    def __init__(
        self,
        connector: KVConnector,
        on_event: Callable[[WorkerEvent], None],
        first_pulls: FirstPulls,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_event = on_event
        self._thread = TransferThread(connector, self._deliver)
        self._first_pulls = first_pulls
        self._sources: dict[int, str] = {}
        """The worker that each pull in flight copies from."""
        self._aborted: set[int] = set()
        """Pulls in flight that were aborted: their end is no fault."""
        self._deadlines: dict[ComputeChecksums, asyncio.TimerHandle] = {}

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Stop moving bytes; blocks the caller for at most `timeout_s`."""
        self._deadlines.clear()
        self._thread.close(timeout_s)

    def execute(self, effect: TransferEffect) -> None:
        """Hand an effect to the transfer thread; its event follows, also when there is no room for it."""
        is_accepted = self._thread.execute(effect)
        match effect:
            case ComputeChecksums():
                deadline = self._loop.call_later(_CHECKSUMS_WITHIN_S, self._give_up_checksums, effect)
                self._deadlines[effect] = deadline
                if not is_accepted:
                    self._loop.call_soon(self._on_transfer, ChecksumsFailed(request=effect, error=_BUSY))
            case Pull(pull_id=pull_id):
                self._sources[pull_id] = effect.source.worker_id
                if not is_accepted:
                    self._loop.call_soon(self._on_transfer, PullDone(pull_id=pull_id, error=_BUSY))
            case AbortPull(pull_id=pull_id):
                self._aborted.add(pull_id)

    def _deliver(self, events: list[TransferEvent]) -> None:
        self._loop.call_soon_threadsafe(self._take, events)

    def _take(self, events: list[TransferEvent]) -> None:
        for event in events:
            self._on_transfer(event)

    def _on_transfer(self, event: TransferEvent) -> None:
        match event:
            case Connected(worker_id=worker_id, transport=transport):
                self._first_pulls.begin(worker_id, transport)
                return
            case ChecksumsComputed(request=request) | ChecksumsFailed(request=request):
                if (deadline := self._deadlines.pop(request, None)) is None:
                    return
                deadline.cancel()
            case PullDone(pull_id=pull_id, failed_block_ids=failed, error=error):
                source = self._sources.pop(pull_id, "")
                self._first_pulls.note(source, event)
                if error:
                    level = logging.DEBUG if pull_id in self._aborted else logging.WARNING
                    _log.log(level, "%d blocks of worker %s did not arrive: %s", len(failed), source, error)
                self._aborted.discard(pull_id)
            case PullAborted(pull_id=pull_id, is_fenced=True):
                self._sources.pop(pull_id, None)
                self._aborted.discard(pull_id)
        self._on_event(event)

    def _give_up_checksums(self, request: ComputeChecksums) -> None:
        """Let the request go on without a hand-over; checksums that come later are dropped."""
        if self._deadlines.pop(request, None) is not None:
            text = f"no checksums of {len(request.block_ids)} blocks within {_CHECKSUMS_WITHIN_S:g} s"
            _log.warning(text, extra={"request_id": name_at_client(request.request_id)})
            self._on_event(ChecksumsFailed(request=request, error=text))
