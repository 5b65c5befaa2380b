"""The names that a router gives the attempts at a request, and its own probes."""

from __future__ import annotations

from typing import Final

ATTEMPT_MARK: Final = "\t"
"""Separator of a request's name and its router's suffix for workers; no client's name contains it."""

PROBE_MARK: Final = f"pair-check{ATTEMPT_MARK}"
"""Prefix of the names of these requests."""


def is_probe(request_id: str) -> bool:
    """Return whether a request is a router's own, which metrics do not count."""
    return request_id.startswith(PROBE_MARK)


def name_at_client(attempt_id: str) -> str:
    """The client's name of a request, from the name that its workers use."""
    return attempt_id.partition(ATTEMPT_MARK)[0]


def attempt_name(request_id: str, router_name: str, number: int) -> str:
    """The name that workers use: another one for each attempt, and for each router that they serve."""
    mark = ".".join(part for part in (router_name, str(number) if number else "") if part)
    return f"{request_id}{ATTEMPT_MARK}{mark}" if mark else request_id
