"""The operator's settings for the order and the size of steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from baton_core.errors import InvalidConfigError

LONG_PROMPT_SHARE: Final = 0.04
"""Share of max_model_len from which a prompt is long, where several may be computed in part."""


class SchedulingPolicy(StrEnum):
    FCFS = "fcfs"
    """First come, first served; priorities are ignored."""
    PRIORITY = "priority"
    """Lower values first, at the expense of running requests with higher ones; then first come."""


def parse_policy(name: str) -> SchedulingPolicy:
    """The policy of this name.

    Raises:
        InvalidConfigError: there is none.
    """
    try:
        return SchedulingPolicy(name)
    except ValueError:
        allowed = " or ".join(SchedulingPolicy)
        raise InvalidConfigError(f"scheduling_policy is {name!r}; allowed: {allowed}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of a step.

    Raises:
        InvalidConfigError: a value is outside its range.
    """

    max_num_seqs: int = 128
    """Sequences that run at once."""
    max_num_batched_tokens: int = 2048
    """Token budget of a step."""
    policy: SchedulingPolicy = SchedulingPolicy.FCFS
    max_num_partial_prefills: int = 1
    """Prompts that a step computes in part. One too many waits, or pauses if more important ones came; those
    that can be computed whole pass it."""
    max_long_partial_prefills: int = 1
    """Long prompts among them."""
    long_prefill_token_threshold: int = 0
    """A prompt with more tokens to compute is long, and gets this many in a step; 0: no prompt is long."""

    max_loras: int = 1
    """Different LoRA adapters that run at once; a request with another one waits, and others pass it."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_loras", "max_num_batched_tokens", "max_num_partial_prefills"):
            if getattr(self, name) < 1:
                raise InvalidConfigError(
                    f"{name} is {getattr(self, name)}; allowed: an integer of at least 1"
                )
        if not 1 <= self.max_long_partial_prefills <= self.max_num_partial_prefills:
            raise InvalidConfigError(
                f"max_long_partial_prefills is {self.max_long_partial_prefills}; "
                f"allowed: 1 to {self.max_num_partial_prefills}, max_num_partial_prefills"
            )
        if self.long_prefill_token_threshold < 0:
            raise InvalidConfigError(
                f"long_prefill_token_threshold is {self.long_prefill_token_threshold}; "
                "allowed: an integer of at least 0"
            )

    def for_model_len(self, max_model_len: int) -> SchedulerConfig:
        """Choose the threshold, if it is left out and several prompts may be computed in part.

        Then it is 4 % of `max_model_len`, but no more than one prompt's share of the token budget.
        """
        if self.max_num_partial_prefills == 1 or self.long_prefill_token_threshold:
            return self
        share = self.max_num_batched_tokens // self.max_num_partial_prefills
        threshold = max(1, min(int(max_model_len * LONG_PROMPT_SHARE), share))
        return replace(self, long_prefill_token_threshold=threshold)
