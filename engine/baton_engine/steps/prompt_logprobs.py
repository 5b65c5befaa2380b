"""Log-probabilities of the prompt tokens in a step, from the hidden states that the step computes anyway."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from baton_core.requests.logprobs import PositionLogprobs
from baton_core.worker.step_plan import LogprobsSpec, SequenceSlice
from baton_engine.sampling.token_logprobs import LogprobsMode, chunks, gather_logprobs

LogitsOf = Callable[[Tensor, str], Tensor]
"""Returns the logits of hidden states `[num_rows, hidden_size]`, with the adapter of all of them."""
PromptLogprobs = dict[int, tuple[PositionLogprobs, ...]]
"""By the number of a slice in the plan, for those that ask."""


def prompt_logprobs(
    logits_of: LogitsOf, hidden: Tensor, slices: Sequence[SequenceSlice], mode: LogprobsMode
) -> PromptLogprobs:
    """Return what slices ask of their prompt targets, given `hidden` `[num_tokens, hidden_size]` of the step.

    Prompts are not sampled, so the processed modes return the same for them as the raw ones.
    """
    return {
        number: _tell(logits_of, rows, slices[number], spec, mode)
        for number, rows, spec in _asked(hidden, slices)
    }


def follow_prompt_logprobs(logits_of: LogitsOf, hidden: Tensor, slices: Sequence[SequenceSlice]) -> None:
    """Compute this rank's part of the logits that `prompt_logprobs` asks for at the leader of its group."""
    for number, rows, _ in _asked(hidden, slices):
        for part in chunks(len(rows)):
            logits_of(rows[part], slices[number].adapter)


def _asked(hidden: Tensor, slices: Sequence[SequenceSlice]) -> Iterator[tuple[int, Tensor, LogprobsSpec]]:
    """Yield the number of each slice that asks, the hidden states before its targets, and what it asks."""
    num_tokens = 0
    for number, piece in enumerate(slices):
        if piece.prompt_logprobs is not None and piece.prompt_targets:
            rows = hidden[num_tokens : num_tokens + len(piece.prompt_targets)]
            yield number, rows, piece.prompt_logprobs
        num_tokens += piece.num_scheduled_tokens


def _tell(
    logits_of: LogitsOf, hidden: Tensor, piece: SequenceSlice, spec: LogprobsSpec, mode: LogprobsMode
) -> tuple[PositionLogprobs, ...]:
    """The logits of few rows exist at a time."""
    told: list[PositionLogprobs] = []
    targets = piece.prompt_targets
    for part in chunks(len(targets)):
        values = mode.values(logits_of(hidden[part], piece.adapter))
        told += gather_logprobs(values, targets[part], [spec] * len(values))
    return tuple(told)
