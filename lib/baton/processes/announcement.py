"""The launcher's end of its router's reports: the banner follows from them once all is ready."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from baton.processes.banner import Place, banner

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """The banner's facts, but for those that the router reports."""

    model_name: str
    num_workers: int
    """Workers that have to be there."""
    place: Place
    began_s: float
    """Start of the launcher, on the loop's clock."""


@asynccontextmanager
async def reading(file_descriptor: int) -> AsyncIterator[asyncio.StreamReader]:
    """Read a pipe, which is closed at the end of the block."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(file_descriptor, "rb")
    )
    try:
        yield reader
    finally:
        transport.close()


@asynccontextmanager
async def announcing(announcement: Announcement, reports: asyncio.StreamReader) -> AsyncIterator[None]:
    """Log the banner once every worker is there and a prompt can be served, within the block."""
    task = asyncio.create_task(_announce(announcement, reports))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _announce(announcement: Announcement, reports: asyncio.StreamReader) -> None:
    is_announced = False
    try:
        async for line in reports:  # to the end: a pipe that nobody reads fills up
            status = json.loads(line)
            num_workers = status["num_workers"]
            if is_announced or not status["is_ready"] or sum(num_workers.values()) < announcement.num_workers:
                continue
            is_announced = True
            after_s = asyncio.get_running_loop().time() - announcement.began_s
            _log.info("%s", banner(announcement.model_name, num_workers, announcement.place, after_s))
    except Exception:
        _log.exception("cannot follow what the router reports of its workers")
