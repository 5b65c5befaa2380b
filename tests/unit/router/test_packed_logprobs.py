from __future__ import annotations

import sys
from typing import Any

import pytest

from baton_core.requests.logprobs import PositionLogprobs
from baton_core.requests.packed_logprobs import ENTRY_BYTES, PackedLogprobs

POSITIONS = (
    PositionLogprobs(token_ids=(7,), logprobs=(-0.1,), ranks=(1,)),
    PositionLogprobs(token_ids=(2**31 - 1, 7, 9), logprobs=(float("-inf"), -0.3, -12.75), ranks=(4096, 1, 2)),
)


def test_each_position_comes_out_as_it_went_in() -> None:
    packed = PackedLogprobs(POSITIONS)
    assert tuple(packed) == POSITIONS
    assert (len(packed), POSITIONS[1] in packed) == (2, True)


def test_positions_are_appended_packed_or_not() -> None:
    packed = PackedLogprobs(POSITIONS)
    packed.extend(POSITIONS[:1])
    packed.extend(PackedLogprobs(POSITIONS))
    assert tuple(packed) == (*POSITIONS, *POSITIONS[:1], *POSITIONS)


def test_an_entry_takes_about_as_many_bytes_as_answers_are_charged_for() -> None:
    one = PositionLogprobs(
        token_ids=tuple(range(21)), logprobs=tuple(-place / 7 for place in range(21)), ranks=tuple(range(21))
    )
    packed = PackedLogprobs([one] * 10_000)
    arrays = (packed._token_ids, packed._logprobs, packed._ranks, packed._ends)
    assert sum(map(sys.getsizeof, arrays)) < 1.25 * ENTRY_BYTES * 210_000


def test_parts_are_packed_again() -> None:
    packed = PackedLogprobs(POSITIONS * 3)
    assert (packed[0], packed[-1]) == (POSITIONS[0], POSITIONS[1])
    part = packed[1:4]
    assert isinstance(part, PackedLogprobs)
    assert part == (*POSITIONS[1:], *POSITIONS)


def test_lists_that_follow_one_another_are_positions() -> None:
    packed = PackedLogprobs.from_lists([1, 2], [7, 8, 9], [-0.5, -1.0, -2.0], [1, 1, 2])
    assert tuple(packed) == (
        PositionLogprobs(token_ids=(7,), logprobs=(-0.5,), ranks=(1,)),
        PositionLogprobs(token_ids=(8, 9), logprobs=(-1.0, -2.0), ranks=(1, 2)),
    )
    assert packed.max_token_id == 9
    assert PackedLogprobs.from_lists([], [], [], []).max_token_id == -1


@pytest.mark.parametrize(
    ("lists", "allowed"),
    [
        (([2], [7], [-0.5], [1]), "one length"),
        (([1], [7], [-0.5], [1, 2]), "one length"),
        (([1, 0], [7], [-0.5], [1]), "1 token"),
        (([1], [7], [float("nan")], [1]), "logarithms"),
    ],
)
def test_lists_that_do_not_fit_are_refused(lists: Any, allowed: str) -> None:
    with pytest.raises(ValueError, match=allowed):
        PackedLogprobs.from_lists(*lists)
