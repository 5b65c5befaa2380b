"""Slices of one token, as if their sequences decoded it: of drafts that are verified, and that are made.

Rows of one sequence share its blocks. A layer writes the K and V of all rows before any of them attends, so a
row sees the drafts before it; and it goes through the kernels, and the captured steps, of decoded tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from baton_core.worker.step_plan import SAMPLED, SequenceSlice

MAX_DECODED: Final = 8
"""Tokens of a sequence that are computed as if they were decoded: such steps are replayed."""


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


def as_decoded(pieces: Sequence[SequenceSlice], max_num_rows: int) -> list[list[SequenceSlice]]:
    """Return the slices that compute each piece, which has one sample: the last one samples it.

    They are of one token each, if a step of at most `max_num_rows` of these computes all pieces; else logits
    of many tokens would be computed in vain.
    """
    lengths = [piece.num_scheduled_tokens for piece in pieces]
    if max(lengths) > MAX_DECODED or sum(lengths) > max_num_rows:
        return [[piece] for piece in pieces]
    return [
        [
            replace(piece, token_ids=(token_id,), start=start)
            for start, token_id in enumerate(piece.token_ids, piece.start)
        ]
        for piece in pieces
    ]


def advanced(piece: SequenceSlice, number: int) -> SequenceSlice:
    """Return the slice of the token that is sampled so many steps behind a slice of one token."""
    if not number:
        return piece
    (sample,) = piece.samples
    later = replace(sample, position=sample.position + number)
    return replace(piece, token_ids=(SAMPLED,), start=piece.start + number, samples=(later,))
