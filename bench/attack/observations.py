"""Measures what processes hold while they are attacked: memory, descriptors, connections, bytes of log."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.chaos.cluster import Cluster, Part

SAMPLE_EVERY_S: Final = 1.0
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")
_LISTENING: Final = "0A"


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory of all parts at one time."""

    at_s: float
    mib: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Held:
    """The descriptors and connections that a process has open."""

    num_descriptors: int
    num_connections: int
    """TCP connections, those that nobody has accepted or that the other end has closed included."""


async def sample_memory(cluster: Cluster, samples: list[Sample]) -> None:
    """Add a sample each second until cancelled."""
    while True:
        mib = {part.name: part.memory_mib() for part in cluster.parts}
        samples.append(Sample(time.monotonic(), mib))
        await asyncio.sleep(SAMPLE_EVERY_S)


def held_by(cluster: Cluster) -> dict[str, Held]:
    """Return the descriptors and connections that each part has open now."""
    connected = _connected_inodes()
    return {part.name: _held(part, connected) for part in cluster.parts}


def log_bytes(cluster: Cluster) -> dict[str, int]:
    return {part.name: part.log.stat().st_size for part in cluster.parts}


def log_faults(cluster: Cluster) -> int:
    """Tracebacks in all logs."""
    return sum(part.log.read_bytes().count(b"Traceback (most recent call last)") for part in cluster.parts)


def _held(part: Part, connected: frozenset[str]) -> Held:
    links = []
    folder = Path(f"/proc/{part.pid}/fd")
    for name in os.listdir(folder):
        try:
            links.append(os.readlink(folder / name))
        except FileNotFoundError:
            continue  # it has just been closed
    found = (_SOCKET.fullmatch(link) for link in links)
    num_connections = sum(match is not None and match[1] in connected for match in found)
    return Held(len(links), num_connections)


def _connected_inodes() -> frozenset[str]:
    rows = (
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path("/proc/net", name).read_text().splitlines()[1:]
    )
    return frozenset(row[9] for row in rows if row[3] != _LISTENING)
