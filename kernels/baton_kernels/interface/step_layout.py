"""Positions of the tokens of a step, as NumPy arrays: computed once per step, for all KV groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepLayout:
    """The slices of a step, back to back, one per sequence; the same for every KV group."""

    seq_of_token: NDArray[np.int64]
    """`[num_tokens]`, which slice a token belongs to."""
    positions: NDArray[np.int64]
    """`[num_tokens]`, position of each token in its sequence."""
    query_start: NDArray[np.int32]
    """`[num_seqs + 1]`, cumulative slice lengths."""
    seq_lens: NDArray[np.int32]
    """`[num_seqs]`, context lengths including the slices."""

    @classmethod
    def of(cls, query_lens: Sequence[int], context_lens: Sequence[int]) -> StepLayout:
        """Lay out slices of `query_lens` tokens at the ends of contexts of `context_lens` tokens."""
        num_seqs = len(query_lens)
        lengths, contexts = (np.fromiter(lens, np.int64, num_seqs) for lens in (query_lens, context_lens))
        query_start = np.zeros(num_seqs + 1, dtype=np.int32)
        query_start[1:] = lengths.cumsum()
        seq_of_token = np.arange(num_seqs).repeat(lengths)
        positions = np.arange(len(seq_of_token)) + (contexts - query_start[1:])[seq_of_token]
        return cls(
            seq_of_token=seq_of_token,
            positions=positions,
            query_start=query_start,
            seq_lens=contexts.astype(np.int32),
        )

    def slots(self, tables: NDArray[np.int32], block_size: int) -> NDArray[np.int64]:
        """The slot of each token `[num_tokens]` through block tables `[num_seqs, max_blocks]`."""
        blocks = tables[self.seq_of_token, self.positions // block_size].astype(np.int64)
        return blocks * block_size + self.positions % block_size


def table_array(block_tables: Sequence[Sequence[int]], width: int = 0) -> NDArray[np.int32]:
    """Block tables side by side, `[num_seqs, max(width, longest)] int32`; 0 where there is no block."""
    num_seqs = len(block_tables)
    lengths = np.fromiter(map(len, block_tables), np.int64, num_seqs)
    tables = np.zeros((num_seqs, max(width, lengths.max(initial=0))), dtype=np.int32)
    blocks = np.fromiter(chain.from_iterable(block_tables), np.int32, lengths.sum())
    tables[np.arange(tables.shape[1]) < lengths[:, None]] = blocks
    return np.maximum(tables, 0, out=tables)
