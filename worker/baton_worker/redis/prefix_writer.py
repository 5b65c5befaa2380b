"""A worker's end of locality: registers it, and writes what it has cached, under one lease."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NoReturn

import msgspec

from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.sessions.worker_info import WorkerInfo
from baton_service.redis.link import LEASE_S, RENEW_S, RedisLink, wait_for
from baton_service.redis.records import ChangeHeader, pack_hashes
from baton_service.redis.scripts import ADD_CHANGE, RELEASE_WORKER, RENEW_WORKER, REPUBLISH
from baton_worker.redis.pending_changes import PendingChanges

MAX_CHANGES: Final = 16_384
"""Entries that the stream keeps, about; who is further behind reads the sets again."""
_LEASE_MS: Final = int(1e3 * LEASE_S)
_log = logging.getLogger(__name__)


class PrefixWriter:
    """The writer of one worker. One write is in flight at a time; later changes go with the next."""

    def __init__(self, link: RedisLink, info: WorkerInfo) -> None:
        self._link = link
        self._info = info
        self._changes = PendingChanges()
        self._is_changed = asyncio.Event()
        self._add = link.script(ADD_CHANGE)
        self._republish = link.script(REPUBLISH)
        self._renew = link.script(RENEW_WORKER)
        self._release = link.script(RELEASE_WORKER)

    def on_changed(self, delta: CacheDelta) -> None:
        """Have a change of the cache written; the first one there is has to be among them."""
        self._changes.add(delta)
        self._is_changed.set()

    async def run(self) -> NoReturn:
        await self._link.keep_doing("cached blocks", self._step)

    async def release(self) -> None:
        """Give the lease back: the worker is gone."""
        keys = self._link.keys
        worker_id, epoch = self._info.worker_id, self._info.epoch
        await self._release(
            (keys.workers, keys.worker(worker_id), keys.blocks(worker_id)), (worker_id, epoch)
        )

    async def _step(self) -> None:
        """Write what is new, or renew the lease; find out when Redis lost what was written."""
        if not self._changes.has_work:
            await wait_for(self._is_changed, RENEW_S)
        write = self._changes.take()
        if write is None:
            is_known = await self._renew_lease()
        elif write.is_snapshot:
            is_known = await self._write_snapshot(write)
        else:
            is_known = await self._write_change(write)
        if is_known:
            self._changes.confirm()
            return
        self._changes.republish()
        if write is not None and write.is_snapshot:
            _log.warning("Redis has a later worker %s; this one does not register", self._info.worker_id)
            await asyncio.sleep(RENEW_S)

    async def _write_change(self, write: CacheDelta) -> bool:
        keys, info = self._link.keys, self._info
        stored, removed = pack_hashes(write.stored), pack_hashes(write.removed)
        done = await self._add(
            (keys.worker(info.worker_id), keys.blocks(info.worker_id), keys.changes, keys.num_changes),
            (info.epoch, write.number, _LEASE_MS, MAX_CHANGES, self._header(write), stored, removed),
        )
        return bool(done)

    async def _write_snapshot(self, write: CacheDelta) -> bool:
        keys, info = self._link.keys, self._info
        names = (keys.workers, keys.worker(info.worker_id), keys.blocks(info.worker_id))
        encoded = msgspec.msgpack.encode(info)
        lease = (info.epoch, write.number, _LEASE_MS, MAX_CHANGES)
        done = await self._republish(
            (*names, keys.changes, keys.num_changes),
            (info.worker_id, encoded, *lease, self._header(write), pack_hashes(write.stored)),
        )
        self._link.state.num_republished += bool(done)
        return bool(done)

    async def _renew_lease(self) -> bool:
        keys, info = self._link.keys, self._info
        number, num_blocks = self._changes.number, self._changes.num_held
        done = await self._renew(
            (keys.workers, keys.worker(info.worker_id), keys.blocks(info.worker_id)),
            (info.worker_id, info.epoch, number, _LEASE_MS, num_blocks),
        )
        return bool(done)

    def _header(self, write: CacheDelta) -> bytes:
        return msgspec.msgpack.encode(
            ChangeHeader(
                worker_id=self._info.worker_id,
                epoch=self._info.epoch,
                number=write.number,
                is_snapshot=write.is_snapshot,
            )
        )
