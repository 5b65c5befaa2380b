"""Log-probabilities as callers get them, in the shape of vLLM's documented classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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


class FlatLogprobs(Sequence["LogprobsOnePosition | None"]):
    """Log-probabilities of a sequence in six flat lists: few objects, however long the sequence.

    Position `i` has the entries from `start_indices[i]` up to `end_indices[i]`. Indexing and iterating make
    the dictionaries, and a slice is another `FlatLogprobs`. A position without entries reads as None.
    """

    def __init__(self, positions: Iterable[LogprobsOnePosition | None] = ()) -> None:
        self.start_indices: list[int] = []
        self.end_indices: list[int] = []
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.ranks: list[int | None] = []
        self.decoded_tokens: list[str | None] = []
        self.extend(positions)

    def append(self, position: LogprobsOnePosition | None) -> None:
        """Add the next position."""
        entries = position or {}
        self.start_indices.append(len(self.token_ids))
        self.token_ids += entries
        for entry in entries.values():
            self.logprobs.append(entry.logprob)
            self.ranks.append(entry.rank)
            self.decoded_tokens.append(entry.decoded_token)
        self.end_indices.append(len(self.token_ids))

    def extend(self, positions: Iterable[LogprobsOnePosition | None]) -> None:
        """Add the next positions."""
        for position in positions:
            self.append(position)

    def __len__(self) -> int:
        return len(self.start_indices)

    @overload
    def __getitem__(self, index: int) -> LogprobsOnePosition | None: ...

    @overload
    def __getitem__(self, index: slice) -> FlatLogprobs: ...

    def __getitem__(self, index: int | slice) -> LogprobsOnePosition | FlatLogprobs | None:
        if isinstance(index, slice):
            return FlatLogprobs(self[position] for position in range(*index.indices(len(self))))
        entries = range(self.start_indices[index], self.end_indices[index])
        return {self.token_ids[entry]: self._entry(entry) for entry in entries} or None

    def __iter__(self) -> Iterator[LogprobsOnePosition | None]:
        return (self[position] for position in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FlatLogprobs) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # it grows

    def __repr__(self) -> str:
        return f"FlatLogprobs({list(self)!r})"

    def _entry(self, entry: int) -> Logprob:
        return Logprob(self.logprobs[entry], self.ranks[entry], self.decoded_tokens[entry])


PromptLogprobs: TypeAlias = FlatLogprobs | list[LogprobsOnePosition | None]
"""One entry for each token of a prompt; None for the first."""
SampleLogprobs: TypeAlias = FlatLogprobs | list[LogprobsOnePosition]
"""One entry for each token of an output."""


def read_position(entry: PositionLogprobs, texts: TokenTexts | None) -> LogprobsOnePosition:
    """Return the engine's log-probabilities of the next position of `texts`, each token once."""
    shown = repeat(None, len(entry.token_ids)) if texts is None else texts.read(entry)
    rows = zip(entry.token_ids, entry.logprobs, entry.ranks, shown, strict=True)
    return {token_id: Logprob(logprob, rank, text) for token_id, logprob, rank, text in rows}
