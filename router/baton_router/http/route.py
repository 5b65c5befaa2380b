"""One row of the table of routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from baton_router.http.calls import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What a method on a path does, takes and gives; the description at /openapi.json is made of it."""

    method: str
    path: str
    summary: str
    answer: Callable[[Call[Any]], Awaitable[None]]
    body: Any = None
    """Type that the body is decoded to; None: it is not read."""
    query: type | None = None
    """Type of the parameters behind the question mark."""
    reply: type | None = None
    """Type of the answer; None: no JSON, or any."""
    chunk: type | None = None
    """Type of a streamed answer's chunks."""
    errors: tuple[int, ...] = ()
    """Statuses it may answer with beside 401 and 500."""
    needs_key: bool = True
