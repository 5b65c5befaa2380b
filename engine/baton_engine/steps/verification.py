"""Slices of one token: those of a draft that is made, and of one that is verified.

When drafted tokens are verified, each is a row of its own, as if its sequence decoded it.

Rows of one sequence share its blocks. A layer writes the K and V of all rows before any of them attends, so a
row sees the drafts before it; and it goes through the kernels, and the captured steps, of decoded tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from baton_core.worker.step_plan import SAMPLED, SequenceSlice


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
        yield replace(
            piece, token_ids=(token_id,), start=piece.start + place, samples=(sample,), num_drafts=0
        )


def advanced(piece: SequenceSlice, number: int) -> SequenceSlice:
    """Return the slice of the token that is sampled so many steps behind a slice of one token."""
    if not number:
        return piece
    (sample,) = piece.samples
    later = replace(sample, position=sample.position + number)
    return replace(piece, token_ids=(SAMPLED,), start=piece.start + number, samples=(later,))
