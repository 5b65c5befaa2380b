"""How sharing through Redis goes, for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class SharedState:
    """Counts since the start; written by the process's loop, and to be read by anyone."""

    is_up: bool = False
    """Whether everything that was last tried succeeded; False without Redis."""
    synced_at_s: float = 0.0
    """When something last did, on the loop's clock; 0 before the first time."""
    num_resyncs: int = 0
    """Sets of workers that a router read anew: at a start, after a gap."""
    num_changes_behind: int = 0
    """Changes in the stream that a router had not read when it last looked."""
    num_republished: int = 0
    """Times that a worker wrote its whole set: at its start, and when Redis had lost it."""
