"""Counts of a sequence's tokens, for penalties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

_FIRST_ROOM: Final = 64
_FEW_TOKENS: Final = 16
"""Tokens up to which each is added by itself."""


class TokenCounts:
    """Distinct tokens and their numbers of times in the output, 0 for those of the prompt alone."""

    def __init__(self, prompt_token_ids: Sequence[int]) -> None:
        prompt = np.unique(np.array(prompt_token_ids, np.int32))
        self._start_with(prompt, np.zeros_like(prompt))

    def add(self, token_ids: Sequence[int]) -> None:
        """Count tokens of the output."""
        if len(token_ids) > _FEW_TOKENS:
            self._merge(np.array(token_ids, np.int32))
            return
        for token_id in token_ids:
            place = self._places.get(token_id)
            if place is None:
                place = self._places[token_id] = self._find(token_id)
            self._counts[place] += 1

    def fork(self) -> TokenCounts:
        """Return counts of the same tokens that go on by themselves."""
        forked = TokenCounts(())
        forked._ids, forked._counts = self._ids.copy(), self._counts.copy()
        forked._num_sorted, forked._num_distinct = self._num_sorted, self._num_distinct
        forked._places = dict(self._places)
        return forked

    @property
    def token_ids(self) -> NDArray[np.int32]:
        """`[num_distinct]`, valid until the next `add`."""
        return self._ids[: self._num_distinct]

    @property
    def counts(self) -> NDArray[np.int32]:
        """`[num_distinct]`, in the order of `token_ids`."""
        return self._counts[: self._num_distinct]

    def _merge(self, token_ids: NDArray[np.int32]) -> None:
        every = np.concatenate((self.token_ids, token_ids))
        times = np.concatenate((self.counts, np.ones_like(token_ids)))
        distinct, places = np.unique(every, return_inverse=True)
        self._start_with(distinct, np.bincount(places, times).astype(np.int32))

    def _start_with(self, token_ids: NDArray[np.int32], counts: NDArray[np.int32]) -> None:
        """Hold these, in order of their ids; later ones come behind them."""
        self._ids, self._counts = _with_room(token_ids, _FIRST_ROOM), _with_room(counts, _FIRST_ROOM)
        self._num_sorted = self._num_distinct = len(token_ids)
        self._places: dict[int, int] = {}
        """Index of each token that was added since."""

    def _find(self, token_id: int) -> int:
        place = int(np.searchsorted(self._ids[: self._num_sorted], token_id))
        if place < self._num_sorted and self._ids[place] == token_id:
            return place
        if self._num_distinct == len(self._ids):
            self._ids = _with_room(self._ids, len(self._ids))
            self._counts = _with_room(self._counts, len(self._counts))
        self._ids[self._num_distinct] = token_id
        self._num_distinct += 1
        return self._num_distinct - 1


def _with_room(array: NDArray[np.int32], room: int) -> NDArray[np.int32]:
    return np.concatenate((array, np.zeros(room, np.int32)))
