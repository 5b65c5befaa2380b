"""Speed of a worker, learned from its own steps and copies.

A step is taken to cost what a step without prompt tokens costs lately, and a constant for each of its prompt
tokens; so attention to long contexts counts as if all prompts were as long as the last ones. Copies are taken
to follow one another: one counts from when it was asked for, or from the end of the one before it. The first
step of a kind and the first copy from a pool teach nothing: they pay for what starts lazily.
"""

from __future__ import annotations

from typing import Final

from baton_core.sessions.router_messages import KVSource
from baton_core.sessions.worker_info import WorkerRates
from baton_core.worker.step_plan import StepPlan, StepResult

MEMORY: Final = 0.9
"""Weight that the past keeps with each observation: what is known is mostly of the last ten."""
NUM_FIRST: Final = 3
"""Observations before a rate is known. It begins as their median, which no single slow step decides."""
MAX_SURPRISE: Final = 4.0
"""A later observation counts as at most so many times what was expected: a pause of the machine is no rate,
and a change of rate is still followed."""
MIN_PROMPT_SHARE: Final = 0.01
"""Share of a step that its prompt tokens take at least, also where steps without any are as long."""
MAX_POOLS: Final = 1024
"""Pools whose first copy is remembered; beyond that the oldest is forgotten."""


class Slope:
    """Seconds per unit: least squares through the origin, the past weighted down exponentially.

    Squares give large amounts the say, so that what every call costs hardly shows.
    """

    def __init__(self) -> None:
        self._first: list[tuple[float, float]] = []
        self._xy = 0.0
        self._xx = 0.0
        self.num_observations = 0

    @property
    def value(self) -> float:
        """0 before `NUM_FIRST` observations."""
        return self._xy / self._xx if self._xx else 0.0

    def observe(self, amount: float, seconds: float) -> None:
        """`amount` is over 0, `seconds` not under 0."""
        self.num_observations += 1
        if self.num_observations <= NUM_FIRST:
            self._first.append((amount, seconds))
            if self.num_observations == NUM_FIRST:
                self._begin()
            return
        if expected_s := self.value * amount:
            seconds = min(seconds, MAX_SURPRISE * expected_s)
        self._add(amount, seconds)

    def _begin(self) -> None:
        """Take the first amounts at the median of their rates."""
        rates = sorted(seconds / amount for amount, seconds in self._first)
        for amount, _ in self._first:
            self._add(amount, amount * rates[NUM_FIRST // 2])

    def _add(self, amount: float, seconds: float) -> None:
        self._xy = MEMORY * self._xy + amount * seconds
        self._xx = MEMORY * self._xx + amount * amount


class LearnedRates:
    """Owned by the worker's core, which tells it of each step that is whole, and of each copy as it begins
    and ends."""

    def __init__(self) -> None:
        self._per_prompt_token = Slope()
        self._per_decode_step = Slope()
        self._per_pulled_byte = Slope()
        self._kinds: set[tuple[int, int]] = set()
        """Kinds of steps that have run."""
        self._pools: dict[tuple[str, int], None] = {}
        """Pools that were pulled from, by worker and epoch."""
        self._pulls: dict[int, tuple[float, int]] = {}
        """Start and bytes of each pull in flight."""
        self._last_pull_ended_s = float("-inf")

    @property
    def rates(self) -> WorkerRates:
        prompts, decodes, pulls = self._per_prompt_token, self._per_decode_step, self._per_pulled_byte
        return WorkerRates(
            prefill_tokens_per_s=_inverse(prompts.value),
            decode_step_s=decodes.value,
            pull_bytes_per_s=_inverse(pulls.value),
            num_prefill_steps=prompts.num_observations,
            num_decode_steps=decodes.num_observations,
            num_pulls=pulls.num_observations,
        )

    def end_step(self, plan: StepPlan, duration_s: float, result: StepResult | None = None) -> None:
        """A slice of one token is a decode: what it costs is the same if it is the last of a prompt.

        Verified drafts make a step of decodes several: `result` says how many tokens each sequence got.
        """
        counts = (piece.num_scheduled_tokens - piece.num_drafts for piece in plan.slices)
        num_prompt_tokens = sum(count for count in counts if count > 1)
        kind = (num_prompt_tokens.bit_length(), 0 if num_prompt_tokens else len(plan.slices))
        if kind not in self._kinds:
            self._kinds.add(kind)
        elif not num_prompt_tokens:
            self._per_decode_step.observe(_num_tokens_each(plan, result), duration_s)
        else:
            prompt_s = max(MIN_PROMPT_SHARE * duration_s, duration_s - self._per_decode_step.value)
            self._per_prompt_token.observe(num_prompt_tokens, prompt_s)

    def begin_pull(self, now: float, pull_id: int, source: KVSource, num_bytes: int) -> None:
        """A copy is asked for; the first one from a pool opens it."""
        pool = (source.worker_id, source.epoch)
        is_open = pool in self._pools
        if not is_open:
            self._pools[pool] = None
            if len(self._pools) > MAX_POOLS:
                del self._pools[next(iter(self._pools))]
        self._pulls[pull_id] = (now, num_bytes if is_open else 0)

    def end_pull(self, now: float, pull_id: int, *, is_whole: bool) -> None:
        """A copy is over; one that lost blocks, or that nobody asked for, teaches nothing."""
        begun = self._pulls.pop(pull_id, None)
        if begun is None:
            return
        asked_s, num_bytes = begun
        started_s = max(asked_s, self._last_pull_ended_s)
        self._last_pull_ended_s = now
        if is_whole and num_bytes:
            self._per_pulled_byte.observe(num_bytes, now - started_s)


def _inverse(value: float) -> float:
    return 1.0 / value if value > 0 else 0.0


def _num_tokens_each(plan: StepPlan, result: StepResult | None) -> float:
    """Return the tokens that each sequence of a step of decodes has got, on average."""
    if result is None or not any(piece.num_drafts for piece in plan.slices):
        return 1.0
    return max(1.0, sum(map(len, result.sampled)) / len(plan.slices))
