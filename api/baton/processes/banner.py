"""The banner of `baton serve`, which the launcher logs once its router reports that everything is ready."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

UNIX: Final = "unix:"
"""The address of a Unix socket begins with it."""
_ROLES: Final = ("prefill", "decode", "mixed")
_ANY: Final = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 (to show another)
"""Hosts that mean all interfaces, and where such a router is reached from this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A router's addresses, each `host:port`, or for HTTP `unix:` and a path."""

    http: str
    grpc: str
    scheme: str = "http"


def banner(model_name: str, num_workers: Mapping[str, int], place: Place, after_s: float) -> str:
    """Lines for a terminal; `num_workers` is by role, `after_s` are seconds since the start."""
    serving = f"serving {model_name} with {_counted(num_workers)}, ready after {after_s:.1f} s"
    grpc = f"  gRPC             {_reachable(place.grpc)}"
    if place.http.startswith(UNIX):
        return f"{serving}\n  HTTP             {place.http}\n{grpc}"
    url = f"{place.scheme}://{_reachable(place.http)}"
    lines = (
        serving,
        f"  chat page        {url}/",
        f"  dashboard        {url}/dashboard",
        f"  OpenAI base URL  {url}/v1",
        f"  API docs         {url}/docs",
        grpc,
    )
    return "\n".join(lines)


def _reachable(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"{_ANY.get(host, host)}:{port}"


def _counted(num_workers: Mapping[str, int]) -> str:
    parts = [_count(num_workers[role], role) for role in _ROLES if num_workers.get(role)]
    return _joined(parts)


def _count(number: int, role: str) -> str:
    return f"{number} {role} worker{'s' if number > 1 else ''}"


def _joined(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """The banner's facts, but for those that the router reports."""

    model_name: str
    num_workers: int
    """Workers that have to be there."""
    place: Place
    began_s: float
    """Start of the router, on the loop's clock."""
    on_registered: Callable[[], object] = lambda: None
    """Called whenever a worker is there."""


@asynccontextmanager
async def announcing(announcement: Announcement | None, reports: asyncio.StreamReader) -> AsyncIterator[None]:
    """Log the banner once every worker is there and a prompt can be served, within the block.

    Without an announcement the reports are read all the same.
    """
    task = asyncio.create_task(_announce(announcement, reports))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _announce(announcement: Announcement | None, reports: asyncio.StreamReader) -> None:
    is_announced = False
    try:
        async for line in reports:  # to the end: a pipe that nobody reads fills up
            if announcement is None:
                continue
            status = json.loads(line)
            num_workers = status["num_workers"]
            if any(num_workers.values()):
                announcement.on_registered()
            if is_announced or not status["is_ready"] or sum(num_workers.values()) < announcement.num_workers:
                continue
            is_announced = True
            after_s = asyncio.get_running_loop().time() - announcement.began_s
            _log.info("%s", banner(announcement.model_name, num_workers, announcement.place, after_s))
    except Exception:
        _log.exception("cannot follow what the router reports of its workers")
