"""Log-probabilities as callers get them, in the shape of vLLM's documented classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import TypeAlias, overload

from baton_core.requests.logprobs import PositionLogprobs
from baton_router.text.characters import TokenTexts


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token at one position."""

    logprob: float
    rank: int | None = None
    """1 is the most likely token of all."""
    decoded_token: str | None = None
    """The token's own text, of a character in several tokens with the last one; None where the request asks
    for no text."""


LogprobsOnePosition: TypeAlias = dict[int, Logprob]
"""Log-probabilities by token id: the token of the position first, then the requested ones."""


@dataclass(slots=True)
class FlatLogprobs(Sequence["LogprobsOnePosition"]):
    """Log-probabilities of a sequence in six flat lists: few objects, however long the sequence.

    Position `i` has the entries from `start_indices[i]` up to `end_indices[i]`. Indexing and iterating make
    the dictionaries, and a slice is another `FlatLogprobs`. The first position of a prompt is empty.
    """

    start_indices: list[int] = field(default_factory=list)
    end_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int | None] = field(default_factory=list)
    decoded_tokens: list[str | None] = field(default_factory=list)

    def append(self, logprobs_one_position: LogprobsOnePosition | None) -> None:
        """Add the next position; None is an empty one."""
        entries = logprobs_one_position or {}
        values = entries.values()
        self.append_fast(
            list(entries),
            [entry.logprob for entry in values],
            [entry.rank for entry in values],
            [entry.decoded_token for entry in values],
        )

    def append_fast(
        self,
        token_ids: list[int],
        logprobs: list[float],
        ranks: Iterable[int | None],
        decoded_tokens: Iterable[str | None],
    ) -> None:
        """Add the next position from equally long lists."""
        self.start_indices.append(len(self.token_ids))
        self.token_ids += token_ids
        self.logprobs += logprobs
        self.ranks += ranks
        self.decoded_tokens += decoded_tokens
        self.end_indices.append(len(self.token_ids))

    def extend(self, logprobs_multi_positions: Iterable[LogprobsOnePosition | None]) -> None:
        """Add the next positions."""
        for position in logprobs_multi_positions:
            self.append(position)

    def __len__(self) -> int:
        return len(self.start_indices)

    @overload
    def __getitem__(self, index: int) -> LogprobsOnePosition: ...

    @overload
    def __getitem__(self, index: slice) -> FlatLogprobs: ...

    def __getitem__(self, index: int | slice) -> LogprobsOnePosition | FlatLogprobs:
        if isinstance(index, slice):
            part = FlatLogprobs()
            part.extend(self[position] for position in range(*index.indices(len(self))))
            return part
        entries = range(self.start_indices[index], self.end_indices[index])
        return {self.token_ids[entry]: self._entry(entry) for entry in entries}

    def __iter__(self) -> Iterator[LogprobsOnePosition]:
        return (self[position] for position in range(len(self)))

    def _entry(self, entry: int) -> Logprob:
        return Logprob(self.logprobs[entry], self.ranks[entry], self.decoded_tokens[entry])


PromptLogprobs: TypeAlias = FlatLogprobs | list[LogprobsOnePosition | None]
"""One entry for each token of a prompt; for the first None, and {} in `FlatLogprobs`."""
SampleLogprobs: TypeAlias = FlatLogprobs | list[LogprobsOnePosition]
"""One entry for each token of an output."""


def read_position(entry: PositionLogprobs, texts: TokenTexts | None) -> LogprobsOnePosition:
    """Return the engine's log-probabilities of the next position of `texts`, each token once."""
    shown = repeat(None, len(entry.token_ids)) if texts is None else texts.read(entry)
    rows = zip(entry.token_ids, entry.logprobs, entry.ranks, shown, strict=True)
    return {token_id: Logprob(logprob, rank, text) for token_id, logprob, rank, text in rows}
