"""An engine that computes nothing: it waits for as long as a step would take.

A token's slot gets a hash of the token and its position, and a sampled token is a hash of
all slots of its sequence. So a block that is wrong, stale or lost on its way shows as a wrong token.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from baton_core.sessions.control_messages import EnginePart
from baton_core.worker.step_plan import SequenceSlice, StepPlan, StepResult
from baton_simulator.capacity.step_timing import StepTiming

if TYPE_CHECKING:
    import torch

    from baton_engine.ranks.ranks import ALONE
from baton_engine.ranks.ranks import ALONE
from baton_engine.steps.step_pipeline import Launched

SLOT_BYTES = 8
METER_FIELDS = 3
_Words = NDArray[np.uint64]
_TOKEN_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_POSITION_FACTOR = np.uint64(0xC2B2AE3D27D4EB4F)
_MIX_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT = np.uint64(31)


def slots(token_ids: Sequence[int], start: int) -> _Words:
    """Return the slots that tokens write to the cache; `token_ids[0]` is at position `start`."""
    tokens = np.array(token_ids, np.uint64) + np.uint64(1)
    positions = np.arange(start + 1, start + 1 + len(token_ids), dtype=np.uint64)
    return _mix(tokens * _TOKEN_FACTOR + positions * _POSITION_FACTOR)


def next_token(slots_sum: np.uint64, vocab_size: int) -> int:
    """The token that follows a sequence whose slots have this sum, modulo 2**64."""
    return int(_mix(np.array([slots_sum]))[0]) % vocab_size


def expected_tokens(prompt: Sequence[int], num_tokens: int, vocab_size: int) -> list[int]:
    """Return the tokens that the engine generates when nothing goes wrong."""
    total = slots(prompt, 0).sum(keepdims=True)
    tokens: list[int] = []
    for position in range(len(prompt), len(prompt) + num_tokens):
        tokens.append(next_token(total[0], vocab_size))
        total += slots(tokens[-1:], position)
    return tokens


def _mix(words: _Words) -> _Words:
    words = (words ^ (words >> _SHIFT)) * _MIX_FACTOR
    return words ^ (words >> _SHIFT)


class TimedEngine:
    """One worker's steps; `execute` runs on the engine thread.

    Args:
        kv_pool: `[num_blocks, ...]`, contiguous; a block has room for a slot of each of its tokens.
        meter: `[3]` f64, added to: seconds of steps, their number, seconds by which they took too long.
    """

    away: frozenset[EnginePart] = frozenset()
    """It has nothing that it could give up."""
    place = ALONE.place
    """It is no rank of a group."""

    def __init__(
        self,
        kv_pool: torch.Tensor,
        block_size: int,
        timing: StepTiming,
        vocab_size: int,
        meter: NDArray[np.float64],
    ) -> None:
        self._blocks = kv_pool.numpy().reshape(kv_pool.shape[0], -1).view(np.uint64)
        self._slots = self._blocks[:, :block_size]
        self._block_size = block_size
        self._timing = timing
        self._vocab_size = vocab_size
        self._meter = meter

    def launch(self, plan: StepPlan) -> Launched:
        """Steps are computed one after the other, each when it is waited for."""
        return partial(self.execute, plan)

    @property
    def is_lost(self) -> bool:
        return False

    async def wait_lost(self) -> None:
        """Wait for ever: there is no other rank."""
        await asyncio.Event().wait()

    def close(self) -> None:
        """Do nothing: there is no other rank."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Write and sample, then wait until the step's time is over."""
        start = time.perf_counter()
        result = self.compute(plan)
        due = start + self._timing.seconds(plan.slices)
        time.sleep(max(0.0, due - time.perf_counter()))
        end = time.perf_counter()
        self._meter += (end - start, 1, end - due)
        return result

    def compute(self, plan: StepPlan) -> StepResult:
        """Write and sample without waiting."""
        if plan.block_copies:
            sources, destinations = (list(side) for side in zip(*plan.block_copies, strict=True))
            self._blocks[destinations] = self._blocks[sources]
        for piece in plan.slices:
            self._write(piece)
        sampled = tuple(self._sample(piece) for piece in plan.slices)
        return StepResult(step_id=plan.step_id, sampled=sampled)

    def _write(self, piece: SequenceSlice) -> None:
        positions = np.arange(piece.start, piece.start + piece.num_scheduled_tokens)
        table = np.array(piece.block_tables[0])
        block_ids, offsets = table[positions // self._block_size], positions % self._block_size
        self._slots[block_ids, offsets] = slots(piece.token_ids, piece.start)

    def _sample(self, piece: SequenceSlice) -> tuple[int, ...]:
        """One token for each sample: they differ in nothing that it looks at."""
        if not piece.samples:
            return ()
        num_tokens = piece.start + piece.num_scheduled_tokens
        seen = self._slots[list(piece.block_tables[0])].reshape(-1)[:num_tokens]
        return (next_token(seen.sum(), self._vocab_size),) * len(piece.samples)
