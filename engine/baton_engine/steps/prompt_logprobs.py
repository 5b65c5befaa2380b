"""Log-probabilities of the prompt tokens in a step, from the hidden states that the step computes anyway."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from baton_core.requests.logprobs import PositionLogprobs
from baton_core.worker.step_plan import LogprobsSpec, SequenceSlice
from baton_engine.models.model import Model
from baton_engine.sampling.token_logprobs import LogprobsMode, chunks, gather_logprobs

PromptLogprobs = dict[int, tuple[PositionLogprobs, ...]]
"""By the number of a slice in the plan, for those that ask."""


def prompt_logprobs(
    model: Model, hidden: Tensor, slices: Sequence[SequenceSlice], mode: LogprobsMode
) -> PromptLogprobs:
    """Return what slices ask of their prompt targets, given `hidden` `[num_tokens, hidden_size]` of the step.

    Prompts are not sampled, so the processed modes return the same for them as the raw ones.
    """
    found: PromptLogprobs = {}
    num_tokens = 0
    for number, piece in enumerate(slices):
        if piece.prompt_logprobs is not None and piece.prompt_targets:
            rows = hidden[num_tokens : num_tokens + len(piece.prompt_targets)]
            found[number] = _tell(model, rows, piece.prompt_targets, piece.prompt_logprobs, mode)
        num_tokens += piece.num_scheduled_tokens
    return found


def _tell(
    model: Model, hidden: Tensor, targets: tuple[int, ...], spec: LogprobsSpec, mode: LogprobsMode
) -> tuple[PositionLogprobs, ...]:
    """The logits of few rows exist at a time."""
    told: list[PositionLogprobs] = []
    for part in chunks(len(targets)):
        values = mode.values(model.logits(hidden[part]))
        told += gather_logprobs(values, targets[part], [spec] * len(values))
    return tuple(told)
