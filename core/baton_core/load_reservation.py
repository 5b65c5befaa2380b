"""The load that a router reserves at a worker for the requests it has placed there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple


class LoadReservation(NamedTuple):
    """Load at one worker: that of one request, or the sum of several reservations."""

    worker_id: str
    num_tokens: int = 0
    """Prompt tokens to compute."""
    num_sequences: int = 0
    num_blocks: int = 0
    """Blocks of a prompt that is computed elsewhere."""


NO_LOAD: Final = LoadReservation("")


def total(worker_id: str, reservations: Iterable[LoadReservation]) -> LoadReservation:
    """Add up several reservations at a worker."""
    columns = zip((0, 0, 0), *(part[1:] for part in reservations), strict=True)
    return LoadReservation(worker_id, *map(sum, columns))
