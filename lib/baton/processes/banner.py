"""The banner of `baton serve` once everything is ready: where it is, and what is running."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_ROLES: Final = ("prefill", "decode", "mixed")
_ANY: Final = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 (to show another)
"""Hosts that mean all interfaces, and where such a router is reached from this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A router's addresses, each `host:port`."""

    http: str
    grpc: str
    scheme: str = "http"


def banner(model_name: str, num_workers: Mapping[str, int], place: Place, after_s: float) -> str:
    """Lines for a terminal; `num_workers` is by role, `after_s` are seconds since the start."""
    url = f"{place.scheme}://{_reachable(place.http)}"
    lines = (
        f"serving {model_name} with {_counted(num_workers)}, ready after {after_s:.1f} s",
        f"  chat page        {url}/",
        f"  dashboard        {url}/dashboard",
        f"  OpenAI base URL  {url}/v1",
        f"  API docs         {url}/docs",
        f"  gRPC             {_reachable(place.grpc)}",
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
