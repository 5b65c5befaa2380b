"""Verification of drafted tokens: each is a row of its own, as if its sequence decoded it.

Rows of one sequence share its blocks. A layer writes the K and V of all rows before any of them attends, so a
row sees the drafts before it; and it goes through the kernels, and the captured steps, of decoded tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from baton_core.worker.step_plan import SequenceSlice


def decoded_rows(slices: tuple[SequenceSlice, ...]) -> tuple[SequenceSlice, ...]:
    """Return the slices of a step, with a slice for each token in the place of one with drafts."""
    if not any(piece.num_drafts for piece in slices):
        return slices
    return tuple([row for piece in slices for row in _rows(piece)])


def _rows(piece: SequenceSlice) -> Iterator[SequenceSlice]:
    if not piece.num_drafts:
        yield piece
        return
    for place, (token_id, sample) in enumerate(zip(piece.token_ids, piece.samples, strict=True)):
        yield SequenceSlice(
            seq_id=piece.seq_id,
            token_ids=(token_id,),
            start=piece.start + place,
            block_tables=piece.block_tables,
            samples=(sample,),
        )


def num_verified(piece: SequenceSlice, token_ids: Sequence[int], failed: Collection[int]) -> int:
    """Return how many of the tokens drawn for a slice with drafts are its next ones, at least one.

    A token counts if all drafts before it are what was drawn in their places. One that could not be drawn,
    a negative one or one whose place is `failed`, ends them: it is drawn again at its turn, or fails then.
    """
    draft = piece.token_ids[1:]
    for place in range(1, len(token_ids)):
        if token_ids[place - 1] != draft[place - 1] or token_ids[place] < 0 or place in failed:
            return place
    return len(token_ids)
