"""Log-probabilities of one position, from the engine to the client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_LOGPROBS: Final = 290_000
"""Log-probabilities of one position: as many as a message between processes holds."""
MAX_CHUNK_LOGPROBS: Final = 2**20
"""Log-probabilities of the prompt tokens that one step computes of a sequence, or of one token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionLogprobs:
    """The token that stands at a position, then those that were requested; equally long.

    The token itself comes first and may come again among the most likely ones.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    ranks: tuple[int, ...]
    """1 is the most likely token of all."""
