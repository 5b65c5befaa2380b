"""Counters of the sharing through Redis, for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class SharedState:
    """Counts since the start, written by the process's loop; any thread may read them."""

    is_up: bool = False
    """True while every last attempt was answered; False without Redis."""
    num_resyncs: int = 0
    """Sets of workers that a router read again: at a start, after a gap."""
    num_changes_behind: int = 0
    """Changes in the stream that a router had not read at its last check."""
    num_republished: int = 0
    """Number of times that a worker wrote its whole set: at its start, and after a loss in Redis."""
