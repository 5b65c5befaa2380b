"""Follows the launcher's reports on the processes of its workers."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from baton_router.core.router_events import ProcessUpdate
from baton_router.core.worker_processes import WorkerProcess
from baton_router.process.router import Router
from baton_service.pipes import reading

_log = logging.getLogger(__name__)


async def follow_launcher(file_descriptor: int | None, router: Router) -> None:
    """Read lines of JSON to the end of the pipe; None where there is no launcher."""
    if file_descriptor is None:
        return
    decoder = msgspec.json.Decoder(WorkerProcess)
    try:
        async with reading(file_descriptor) as lines:
            async for line in lines:
                router.notify(ProcessUpdate(process=decoder.decode(line)))
    except asyncio.CancelledError:
        raise
    except Exception:
        _log.exception("cannot follow the launcher's reports on its workers")
