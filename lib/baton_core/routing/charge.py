"""What a router counts against a worker for a request that it has given to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple


class Charge(NamedTuple):
    """A sum of such counts is a charge, too."""

    worker_id: str
    num_tokens: int = 0
    """Prompt tokens to compute."""
    num_sequences: int = 0
    num_blocks: int = 0
    """Blocks of a prompt that is computed elsewhere."""


NOTHING: Final = Charge("")


def total(worker_id: str, charges: Iterable[Charge]) -> Charge:
    """What several charges of a worker come to."""
    parts = list(charges)
    return Charge(
        worker_id,
        num_tokens=sum(part.num_tokens for part in parts),
        num_sequences=sum(part.num_sequences for part in parts),
        num_blocks=sum(part.num_blocks for part in parts),
    )
