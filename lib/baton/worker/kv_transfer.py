"""Between a worker's core and its transfer thread: effects to commands, results to events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, assert_never

from baton.worker.first_pulls import FirstPulls
from baton_core.routing.request_log import name_at_client
from baton_core.sessions.router_messages import KVSource
from baton_core.worker.worker_events import (
    AbortPull,
    Pull,
    PullAborted,
    PullDone,
    Seal,
    Sealed,
    SealFailed,
    WorkerEvent,
)
from baton_kv import transfer_thread as kv
from baton_kv.connector import AbortResult, BlockCopy, KVConnector, PullOrder, PullOutcome

_SEAL_WITHIN_S: Final = 8.0
"""A puller waits no longer for a copy either."""
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
        self._thread = kv.TransferThread(connector, self._deliver)
        self._first_pulls = first_pulls
        self._connected: dict[str, int] = {}
        self._source_of: dict[int, str] = {}
        """Of each pull in flight, the worker."""
        self._seals: dict[int, Seal] = {}
        self._num_seals = 0

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Stop moving bytes; blocks the caller for at most `timeout_s`."""
        self._seals.clear()
        self._thread.close(timeout_s)

    def execute(self, effect: Seal | Pull | AbortPull) -> None:
        """Hand an effect to the transfer thread; its event follows, also when there is no room for it."""
        match effect:
            case Seal():
                self._num_seals += 1
                self._seals[self._num_seals] = effect
                self._loop.call_later(_SEAL_WITHIN_S, self._give_up_seal, self._num_seals)
                if not self._thread.seal(self._num_seals, effect.block_ids):
                    full = SealFailed(request_id=effect.request_id, message="too many transfers wait")
                    del self._seals[self._num_seals]
                    self._loop.call_soon(self._on_event, full)
            case Pull():
                self._source_of[effect.pull_id] = effect.source.worker_id
                if not (self._connect(effect.source) and self._thread.pull(_order(effect))):
                    del self._source_of[effect.pull_id]
                    full_pull = PullDone(pull_id=effect.pull_id, error="too many transfers wait")
                    self._loop.call_soon(self._on_event, full_pull)
            case AbortPull(pull_id=pull_id):
                self._thread.abort(pull_id)
            case _:
                assert_never(effect)

    def _connect(self, source: KVSource) -> bool:
        """Open the source's pool unless it is; commands run in order, so a pull may follow at once."""
        if self._connected.get(source.worker_id) == source.epoch:
            return True
        is_accepted = self._thread.connect(source.worker_id, source.kv_description)
        if is_accepted:
            self._connected[source.worker_id] = source.epoch
        return is_accepted

    def _deliver(self, results: list[kv.TransferResult]) -> None:
        self._loop.call_soon_threadsafe(self._take, results)

    def _take(self, results: list[kv.TransferResult]) -> None:
        for result in results:
            event = self._event(result)
            if event is not None:
                self._on_event(event)

    def _give_up_seal(self, tag: int) -> None:
        """The request goes on without a hand-over; checksums that come later find nobody."""
        if (seal := self._seals.pop(tag, None)) is not None:
            text = f"no checksums of {len(seal.block_ids)} blocks within {_SEAL_WITHIN_S:g} s"
            _log.warning(text, extra={"request_id": name_at_client(seal.request_id)})
            self._on_event(SealFailed(request_id=seal.request_id, message=text))

    def _event(self, result: kv.TransferResult) -> WorkerEvent | None:
        match result:
            case kv.Connected(peer_id=peer_id, transport=transport, error=error):
                if error is None:
                    self._first_pulls.begin(peer_id, transport)
                else:
                    self._connected.pop(peer_id, None)
                    _log.warning("cannot open the KV pool of worker %s: %s", peer_id, error)
                return None
            case kv.Sealed(tag=tag, checksums=checksums, error=error):
                seal = self._seals.pop(tag, None)
                return None if seal is None else _sealed(seal, checksums, error)
            case PullOutcome(pull_id=pull_id, failed=failed, error=error):
                source = self._source_of.pop(pull_id, "")
                self._first_pulls.note(source, result)
                if error is not None:
                    _log.warning("%d blocks of worker %s did not arrive: %s", len(failed), source, error)
                return PullDone(pull_id=pull_id, failed_block_ids=failed, error=error or "")
            case kv.Aborted(pull_id=pull_id, result=outcome):
                if outcome is AbortResult.FENCED:
                    self._source_of.pop(pull_id, None)
                return PullAborted(pull_id=pull_id, is_fenced=outcome is AbortResult.FENCED)
        assert_never(result)


def _order(pull: Pull) -> PullOrder:
    copies = tuple(
        BlockCopy(
            remote_block_id=block.remote_block_id,
            local_block_id=block.local_block_id,
            checksum=block.checksum,
        )
        for block in pull.blocks
    )
    source = pull.source
    return PullOrder(pull_id=pull.pull_id, source=source.worker_id, epoch=source.epoch, copies=copies)


def _sealed(seal: Seal, checksums: tuple[int | None, ...], error: str | None) -> Sealed | SealFailed:
    known = tuple(checksum for checksum in checksums if checksum is not None)
    if error is not None or len(known) != len(seal.block_ids):
        return SealFailed(request_id=seal.request_id, message=error or "no checksums")
    return Sealed(request_id=seal.request_id, indices=seal.indices, block_ids=seal.block_ids, checksums=known)
