"""Log-probabilities of many positions, in a fifth of the memory that their objects take."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate
from math import isnan
from typing import Final, overload

from baton_core.requests.logprobs import PositionLogprobs

ENTRY_BYTES: Final = 16
"""Memory of one token of a position: id, log-probability, rank."""


class PackedLogprobs(Sequence[PositionLogprobs]):
    """Positions in order. It grows at its end and gives each position as it was."""

    __slots__ = ("_ends", "_logprobs", "_ranks", "_token_ids")

    def __init__(self, positions: Iterable[PositionLogprobs] = ()) -> None:
        self._token_ids = array("I")
        self._logprobs = array("d")
        self._ranks = array("I")
        self._ends = array("Q")
        self.extend(positions)

    @classmethod
    def from_lists(
        cls, lengths: Iterable[int], token_ids: Iterable[int], logprobs: Iterable[float], ranks: Iterable[int]
    ) -> PackedLogprobs:
        """Return the positions whose tokens follow one another in three lists.

        Args:
            lengths: tokens of each position.

        Raises:
            ValueError: a position has no token, the lists are not equally long, or a number is none.
        """
        packed = cls()
        packed._token_ids.extend(token_ids)
        packed._logprobs.extend(logprobs)
        packed._ranks.extend(ranks)
        packed._ends.extend(accumulate(lengths))
        num_tokens = packed._ends[-1] if packed._ends else 0
        if not len(packed._token_ids) == len(packed._logprobs) == len(packed._ranks) == num_tokens:
            raise ValueError("lists of one length")
        if not all(lengths):
            raise ValueError("1 token or more at each position")
        if isnan(sum(packed._logprobs)):
            raise ValueError("logarithms of probabilities")
        return packed

    @property
    def max_token_id(self) -> int:
        """The highest token id; -1 without any."""
        return max(self._token_ids, default=-1)

    @overload
    def __getitem__(self, index: int) -> PositionLogprobs: ...
    @overload
    def __getitem__(self, index: slice) -> PackedLogprobs: ...
    def __getitem__(self, index: int | slice) -> PositionLogprobs | PackedLogprobs:
        numbers = range(len(self._ends))[index]
        if isinstance(numbers, int):
            start, end = self._bounds(numbers)
            return PositionLogprobs(
                token_ids=tuple(self._token_ids[start:end]),
                logprobs=tuple(self._logprobs[start:end]),
                ranks=tuple(self._ranks[start:end]),
            )
        packed = PackedLogprobs()
        for number in numbers:
            start, end = self._bounds(number)
            packed._token_ids += self._token_ids[start:end]
            packed._logprobs += self._logprobs[start:end]
            packed._ranks += self._ranks[start:end]
            packed._ends.append(len(packed._token_ids))
        return packed

    def __len__(self) -> int:
        return len(self._ends)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Collection) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # it grows

    def __repr__(self) -> str:
        return f"PackedLogprobs(<{len(self)} positions>)"

    def _bounds(self, number: int) -> tuple[int, int]:
        return self._ends[number - 1] if number else 0, self._ends[number]

    def extend(self, positions: Iterable[PositionLogprobs]) -> None:
        """Append positions."""
        if isinstance(positions, PackedLogprobs):
            before = len(self._token_ids)
            self._token_ids += positions._token_ids
            self._logprobs += positions._logprobs
            self._ranks += positions._ranks
            self._ends.extend(before + end for end in positions._ends)
            return
        for position in positions:
            self._token_ids.extend(position.token_ids)
            self._logprobs.extend(position.logprobs)
            self._ranks.extend(position.ranks)
            self._ends.append(len(self._token_ids))
