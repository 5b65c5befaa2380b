"""Drafts that a model makes: a step orders them, and its result brings them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from baton_core.worker.step_plan import DraftOrder
from baton_worker.core.speculation.step_times import LearnedTime

FIRST_COST: Final = 0.3
"""Guess before anything is known: the time of one token of the draft model, in units of a step's."""
PROBE_EVERY: Final = 8
MAX_PROBE_EVERY: Final = 64
"""Steps that ask for drafts and find none worth its time, after which a token of one sequence is ordered
nevertheless, so that the share of right ones stays known: from the first to the second, twice as many each
time. The draft model has to compute all of that sequence's tokens since its last order; so the next step
orders one more, which tells what a token costs."""


class ModelDrafts:
    """The drafter of one sequence, whose drafts have come with the result of the step before."""

    def __init__(self) -> None:
        self._num_computed = 0
        """Tokens that the draft model has computed."""
        self._start = 0
        self._draft: tuple[int, ...] = ()

    def propose(self, token_ids: Sequence[int], num_tokens: int) -> tuple[int, ...]:
        """Return the draft that was made behind exactly these tokens."""
        return self._draft[:num_tokens] if len(token_ids) == self._start else ()

    def order(self, token_ids: Sequence[int], num_tokens: int) -> DraftOrder:
        """Order tokens behind those that the next step samples."""
        start = self._num_computed
        return DraftOrder(num_tokens=num_tokens, start=start, token_ids=tuple(token_ids[start:]))

    def take(self, num_tokens: int, draft: tuple[int, ...] | None) -> None:
        """Take what was drafted behind the first `num_tokens` tokens; None: nothing could be."""
        self._num_computed = self._start = 0 if draft is None else num_tokens
        self._draft = draft or ()


class DraftCosts:
    """The time of one token of the draft model, for all sequences of a step, in units of the step's."""

    def __init__(self) -> None:
        self._drafting = LearnedTime()
        self._step = LearnedTime()

    @property
    def relative(self) -> float:
        return self._drafting.seconds / self._step.seconds if self._drafting.is_known else FIRST_COST

    def observe(self, drafting_s: float, step_s: float) -> None:
        """One token has taken so long, and the step without it so long."""
        self._drafting.observe(drafting_s)
        self._step.observe(step_s)


class Probes:
    """Says when a token is ordered though none is worth its time, and of which sequence."""

    def __init__(self) -> None:
        self._num_probes = 0
        self.reset()

    def reset(self) -> None:
        """Drafts are worth their time."""
        self._interval = self._left = PROBE_EVERY
        self._is_second = False

    def next(self, num_seqs: int) -> int | None:
        """Count a step that finds none; returns the place of the sequence to probe, if it is time."""
        self._left -= 1
        if self._left > 0:
            return None
        if self._is_second:
            self._left = self._interval
        else:
            self._interval = min(2 * self._interval, MAX_PROBE_EVERY)
            self._left = 1
            self._num_probes += 1
        self._is_second = not self._is_second
        return self._num_probes % num_seqs


def best_length(share: float, times: Sequence[float], cost: float, num_seqs: int, least_gain: float) -> int:
    """Return how many tokens to draft for each of `num_seqs` sequences; 0 where that is not faster.

    Args:
        share: of right tokens, each behind right ones.
        times: of steps of `num_seqs` rows and more, in units of the first.
        cost: of one drafted token, in the same unit.
        least_gain: speed, in units of that without drafts, that counts as faster.
    """
    best, best_speed, expected = 0, least_gain, 1.0
    for length in range(1, (len(times) - 1) // num_seqs + 1):
        expected += share**length
        if (speed := expected / (times[length * num_seqs] + cost * length)) > best_speed:
            best, best_speed = length, speed
    return best
