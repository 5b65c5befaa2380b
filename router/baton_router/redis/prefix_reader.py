"""Prefix cache updates from Redis: tails the changes of workers, and reads a whole set after a gap."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import msgspec

from baton_core.kv_events.cache_delta import CacheDelta
from baton_router.core.router_events import PrefixUpdate
from baton_router.redis.stream_tail import Fields, StreamTail
from baton_service.redis.link import RENEW_S, RedisLink, wait_for
from baton_service.redis.records import read_change, unpack_hashes
from baton_service.redis.scripts import READ_WORKER

_MAX_PART: Final = 4096
"""Maximum number of hashes in one update."""


@dataclass(slots=True, kw_only=True)
class _Worker:
    """The progress of updates from a worker that has a session with this router."""

    epoch: int
    known: int = 0
    """Number of the last published change; 0 before the first snapshot."""
    seen: int = 0
    """Number of the last change in the stream."""
    held: list[CacheDelta] | None = None
    """Changes that arrive while the snapshot is being published."""


class PrefixReader:
    """Publishes the prefix cache updates of workers to one router.

    A change that follows the last known one is published as it is. After a gap, a snapshot or a start the
    worker is *stale*: its set is read with its number, in one transaction, and published as a snapshot.

    Args:
        on_update: called on the loop, for each worker in the order of the numbers and without gaps.
    """

    def __init__(self, link: RedisLink, on_update: Callable[[PrefixUpdate], None]) -> None:
        self._link = link
        self._on_update = on_update
        self._tail = StreamTail(link, link.keys.changes)
        self._read_worker = link.script(READ_WORKER)
        self._workers: dict[str, _Worker] = {}
        self._stale: dict[str, None] = {}
        self._is_stale = asyncio.Event()
        self._count = 0

    def follow(self, worker_id: str, epoch: int) -> None:
        """Publish the prefixes of this worker, and then its changes; after a restart from the beginning."""
        self._workers[worker_id] = _Worker(epoch=epoch)
        self._mark_stale(worker_id)

    def forget(self, worker_id: str) -> None:
        """Stop publishing updates of this worker."""
        self._workers.pop(worker_id, None)
        self._stale.pop(worker_id, None)

    async def run(self) -> NoReturn:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._link.keep_doing("changes of cached blocks", self._tail_step))
            tasks.create_task(self._link.keep_doing("sets of cached blocks", self._resync_step))
        raise AssertionError("both run forever")

    async def _tail_step(self) -> None:
        if not self._tail.has_begun:
            last = await self._tail.begin()
            self._count = int(last[b"count"]) if last else 0
            self._mark_all_stale()
        entries = await self._tail.read()
        for fields in entries:
            self._take(fields)
        if not entries:
            await self._find_missed()

    async def _find_missed(self) -> None:
        """Detect trimmed entries at the end of the stream."""
        total = await self._num_changes()
        for fields in await self._tail.read(waits=False):
            self._take(fields)
        if self._count < total and self._tail.is_at_end:
            self._count = total
            self._mark_all_stale()

    async def _num_changes(self) -> int:
        found = await self._link.command("GET", self._link.keys.num_changes) or b""
        return int(found) if found.isdigit() else 0

    def _take(self, fields: Fields) -> None:
        count = int(fields[b"count"])
        if count != self._count + 1:  # the stream was trimmed, or it is a new one
            self._mark_all_stale()
        self._count = count
        header = read_change(fields[b"header"])
        worker = self._workers.get(header.worker_id)
        if worker is None or worker.epoch != header.epoch:
            return
        worker.seen = max(worker.seen, header.number)
        if header.number <= worker.known:
            return
        if header.is_snapshot or header.worker_id in self._stale or header.number > worker.known + 1:
            self._mark_stale(header.worker_id)
            return
        stored, removed = unpack_hashes(fields[b"stored"]), unpack_hashes(fields[b"removed"])
        worker.known = header.number
        delta = CacheDelta(stored=stored, removed=removed, number=header.number)
        if worker.held is None:
            self._on_update(PrefixUpdate(worker_id=header.worker_id, epoch=header.epoch, delta=delta))
        else:
            worker.held.append(delta)

    async def _resync_step(self) -> None:
        """Read the sets of the stale workers, one at a time, and measure how far behind the tail is."""
        if not self._stale:
            await wait_for(self._is_stale, RENEW_S)
        for worker_id in list(self._stale):
            try:
                await self._resync(worker_id)
            except msgspec.MsgspecError as error:
                self._link.note_unreadable(f"blocks of worker {worker_id}: {error}")
        self._link.state.num_changes_behind = max(0, await self._num_changes() - self._count)

    async def _resync(self, worker_id: str) -> None:
        keys = self._link.keys
        found: list[Any] = await self._read_worker((keys.worker(worker_id), keys.blocks(worker_id)), ())
        worker = self._workers.get(worker_id)
        if worker is None or worker_id not in self._stale:
            return
        if not found or found[0] != b"%d" % worker.epoch:
            del self._stale[worker_id]  # it has yet to write, and then comes by with a snapshot
            return
        worker.known = int(found[1])
        if worker.known >= worker.seen:
            del self._stale[worker_id]
        worker.seen = worker.known  # reading once more is enough: a Redis that was set back has no more
        self._link.state.num_resyncs += 1
        await self._publish_snapshot(worker_id, worker, unpack_hashes(found[2]))

    async def _publish_snapshot(self, worker_id: str, worker: _Worker, hashes: tuple[bytes, ...]) -> None:
        """Publish a worker's whole set in parts; between them the loop does other work."""
        number, worker.held = worker.known, []
        for start in range(0, max(1, len(hashes)), _MAX_PART):
            part = hashes[start : start + _MAX_PART]
            delta = CacheDelta(stored=part, number=number, is_snapshot=not start)
            self._on_update(PrefixUpdate(worker_id=worker_id, epoch=worker.epoch, delta=delta))
            await asyncio.sleep(0)
            if self._workers.get(worker_id) is not worker:
                return
        held, worker.held = worker.held, None
        for delta in held:
            self._on_update(PrefixUpdate(worker_id=worker_id, epoch=worker.epoch, delta=delta))

    def _mark_stale(self, worker_id: str) -> None:
        self._stale[worker_id] = None
        self._is_stale.set()

    def _mark_all_stale(self) -> None:
        for worker_id in self._workers:
            self._mark_stale(worker_id)
