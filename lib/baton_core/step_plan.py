"""What the scheduler hands to the engine for one step, and what comes back.

Plain values: the engine thread reads them while the loop thread goes on changing its own state.
A step knows no phases: a prompt chunk, one decoded token and a recompute after preemption are all a
`SequenceSlice` of a different length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NO_BLOCK: Final = -1
"""In a block table: a block that lies before the window and was given back."""


@dataclass(frozen=True, slots=True, order=True)
class SeqId:
    """One token stream: sequence `index` (0 to n - 1) of a request."""

    request_id: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSpec:
    """How to draw one token from the logits of a slice's last position."""

    seed: int
    """64-bit key of this sequence's noise."""
    position: int
    """Position of the drawn token in its sequence (prompt included): the counter of the noise."""
    temperature: float
    """0 means greedy."""
    top_k: int
    """0 means all."""
    top_p: float
    min_p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSlice:
    """The tokens of one sequence that this step computes."""

    seq_id: SeqId
    token_ids: tuple[int, ...]
    start: int
    """Position of `token_ids[0]`; everything before it is already in the sequence's blocks."""
    block_tables: tuple[tuple[int, ...], ...]
    """For each KV group, the block table up to and including the block of the last token; `NO_BLOCK` where
    all tokens of a block lie before the group's window."""
    samples: tuple[SampleSpec, ...] = ()
    """Draws from the last position's logits: none inside a prompt, one per sequence at its end."""

    @property
    def num_scheduled_tokens(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step. Copies happen before anything is written: all sources are read first, then all
    destinations are written."""

    step_id: int
    slices: tuple[SequenceSlice, ...]
    block_copies: tuple[tuple[int, int], ...] = ()
    """(source block, destination block) pairs of copy on write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The tokens drawn in a step, in the order of the plan's slices and each slice's samples."""

    step_id: int
    sampled: tuple[tuple[int, ...], ...]
