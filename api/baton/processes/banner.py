"""The banner of `baton serve`, which the launcher logs once its router reports that everything is ready."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
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
    counts = {role: num_workers[role] for role in _ROLES if num_workers.get(role)}
    workers = [f"{number} {role} worker{'s' if number > 1 else ''}" for role, number in counts.items()]
    with_workers = " and ".join(filter(None, (", ".join(workers[:-1]), workers[-1])))
    serving = f"serving {model_name} with {with_workers}, ready after {after_s:.1f} s"
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


async def follow_reports(announcement: Announcement | None, reports: asyncio.StreamReader) -> None:
    """Log the banner once every worker is there and a prompt can be served; read on until cancelled.

    Without an announcement the reports are read all the same.
    """
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
