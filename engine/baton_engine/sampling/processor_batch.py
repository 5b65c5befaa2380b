"""Logits processors of whole batches: which rows of a step are which of their requests, and their turn.

Called from the engine thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from baton_core.errors import ErrorCode, RequestError
from baton_core.worker.step_plan import SamplingHistory, SeqId
from baton_engine.sampling.processor_interface import (
    AddedRequest,
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
    MovedRequest,
)

MakeProcessors = Callable[[], Sequence[LogitsProcessor]]


class BatchProcessors:
    """The classes' instances; without any, nothing is done.

    Args:
        make: makes the instances, again where one has failed: what it knew of its requests is lost.
    """

    def __init__(self, make: MakeProcessors = tuple) -> None:
        self._make = make
        self._begin()

    def _begin(self) -> None:
        self._processors = tuple(self._make())
        self._batch = Batch()
        self._rows: list[int] = []

    def update(self, histories: Mapping[int, SamplingHistory]) -> dict[int, Exception]:
        """Take the sequences of a step by row; return the errors of rows, all of them where a class fails."""
        if not self._processors:
            return {}
        update = self._batch.update(histories)
        self._rows = self._batch.rows(histories)
        for processor in self._processors:
            try:
                processor.update_state(update)
            except Exception as error:
                return self._fail(processor, error)
        return {}

    def apply(self, logits: Tensor) -> dict[int, Exception]:
        """Change the rows of the last `update` by the classes that may change the most likely token."""
        return self._apply(logits, 1.0, is_invariant=False)

    def apply_invariant(
        self, logits: Tensor, histories: Mapping[int, SamplingHistory]
    ) -> dict[int, Exception]:
        """Change the rows that are not greedy by the others, which see logits after the temperature."""
        params = [histories[row].rules.params for row in self._rows]
        if all(one.is_greedy for one in params):
            return {}
        scales = [1.0 if one.is_greedy else one.temperature for one in params]
        temperature = torch.tensor(scales, device=logits.device)[:, None]
        greedy = [row for row, one in zip(self._rows, params, strict=True) if one.is_greedy]
        before = logits[greedy]
        failures = self._apply(logits, temperature, is_invariant=True)
        logits[greedy] = before
        return failures

    def _apply(
        self, logits: Tensor, temperature: Tensor | float, *, is_invariant: bool
    ) -> dict[int, Exception]:
        """Mutate `logits` `[num_rows, vocab_size] float32` at the rows of the last `update`."""
        wanted = [one for one in self._processors if one.is_argmax_invariant() == is_invariant]
        if not (wanted and self._rows):
            return {}
        batch = logits[self._rows] / temperature
        is_none = batch.isnan()
        for processor in wanted:
            try:
                batch = _checked(processor.apply(batch), batch.shape)
            except Exception as error:
                return self._fail(processor, error)
        # An infinite logit is sampled, NaN is not, but where the model's own logit is none.
        highest = torch.finfo(batch.dtype).max
        batch = batch.nan_to_num(nan=-torch.inf, posinf=highest, neginf=-torch.inf)
        logits[self._rows] = batch.masked_fill_(is_none, torch.nan) * temperature
        return {}

    def _fail(self, processor: LogitsProcessor, error: Exception) -> dict[int, Exception]:
        name, rows = type(processor).__qualname__, self._rows
        message = f"the logits processor {name} fails: {type(error).__name__}: {error}"
        self._begin()
        return {row: RequestError(ErrorCode.INTERNAL, message) for row in rows}


def _checked(made: object, shape: torch.Size) -> Tensor:
    if not isinstance(made, Tensor) or made.shape != shape:
        shown = f"{list(made.shape)}" if isinstance(made, Tensor) else repr(made)[:80]
        raise ValueError(f"it returned {shown}; allowed: logits {list(shape)}")
    return made.float()


class Batch:
    """The requests that the classes know, each at an index of its own without gaps."""

    def __init__(self) -> None:
        self._members: list[_Member] = []

    def update(self, histories: Mapping[int, SamplingHistory]) -> BatchUpdate | None:
        """Take the sequences of a step; return the changes, None without any."""
        coming = {history.seq_id: history for history in histories.values()}
        free = [index for index, member in enumerate(self._members) if not member.follow(coming)]
        added: list[AddedRequest] = []
        for history in coming.values():
            member = _Member(history)
            if free:
                index = free.pop(0)
                self._members[index] = member
            else:
                index = len(self._members)
                self._members.append(member)
            added.append((index, history.rules.params, member.prompt_token_ids, member.output_token_ids))
        removed, moved = list(free), self._close(free)
        if not (added or removed):
            return None
        return BatchUpdate(batch_size=len(self._members), removed=removed, added=added, moved=moved)

    def rows(self, histories: Mapping[int, SamplingHistory]) -> list[int]:
        """Return the rows of the step in the order of the indices."""
        by_name = {history.seq_id: row for row, history in histories.items()}
        return [by_name[member.seq_id] for member in self._members]

    def _close(self, gaps: list[int]) -> list[MovedRequest]:
        """Move the last ones into the gaps, which ascend."""
        moved: list[MovedRequest] = []
        while gaps:
            member = self._members.pop()
            if gaps[-1] == len(self._members):
                gaps.pop()
                continue
            self._members[gaps[0]] = member
            moved.append((len(self._members), gaps.pop(0), MoveDirectionality.UNIDIRECTIONAL))
        return moved


class _Member:
    """One sequence of a batch; its lists are the class's to read."""

    def __init__(self, history: SamplingHistory) -> None:
        self.seq_id = history.seq_id
        self._rules = history.rules
        self.prompt_token_ids = list(history.prompt_token_ids)
        self.output_token_ids = list(history.output_token_ids)

    def follow(self, coming: dict[SeqId, SamplingHistory]) -> bool:
        """Take its sequence out of `coming` if that continues it; False if it does not go on."""
        history = coming.get(self.seq_id)
        if history is None or history.rules is not self._rules:
            return False
        known, now = self.output_token_ids, history.output_token_ids
        if len(known) > len(now) or (known and now[len(known) - 1] != known[-1]):
            return False
        known += now[len(known) :]
        del coming[self.seq_id]
        return True
