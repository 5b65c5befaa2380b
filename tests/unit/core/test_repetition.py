"""Sequences that repeat themselves: noticed at the right token, whatever came before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_core.errors import InvalidRequestError
from baton_core.requests.repetition import MAX_COUNT, RepetitionDetectionParams, RepetitionWatch


def make_detection(longest: int, shortest: int = 0, count: int = 2) -> RepetitionDetectionParams:
    return RepetitionDetectionParams(
        max_pattern_size=longest, min_pattern_size=shortest, min_count=count if longest else 0
    )


def first_repeat(token_ids: Sequence[int], detection: RepetitionDetectionParams) -> int | None:
    """Number of tokens after which the watch first says so."""
    watch = RepetitionWatch(detection)
    for number, token_id in enumerate(token_ids, start=1):
        watch.add(token_id)
        if watch.is_repeating:
            return number
    return None


def is_repeated(token_ids: Sequence[int], detection: RepetitionDetectionParams) -> bool:
    """The definition: the end is `min_count` times one pattern of an allowed size."""
    for size in range(max(1, detection.min_pattern_size), detection.max_pattern_size + 1):
        span = size * detection.min_count
        if len(token_ids) >= span and list(token_ids[-span:]) == [*token_ids[-size:]] * detection.min_count:
            return True
    return False


@given(
    token_ids=st.lists(st.integers(0, 2), max_size=40),
    sizes=st.tuples(st.integers(1, 6), st.integers(0, 6)).filter(lambda sizes: sizes[1] <= sizes[0]),
    count=st.integers(2, 4),
)
def test_the_watch_says_at_each_token_what_the_definition_says(
    token_ids: list[int], sizes: tuple[int, int], count: int
) -> None:
    detection = make_detection(*sizes, count)
    watch = RepetitionWatch(detection)
    assert not watch.is_repeating
    for number, token_id in enumerate(token_ids, start=1):
        watch.add(token_id)
        assert watch.is_repeating == is_repeated(token_ids[:number], detection)


@pytest.mark.parametrize(
    ("token_ids", "detection", "at"),
    [
        ([9, 5, 5, 5], make_detection(1, count=3), 4),
        ([1, 2, 1, 2, 1], make_detection(4), 4),
        ([1, 2, 3, 1, 2, 3], make_detection(2), None),
        ([7, 7, 7, 7], make_detection(4, shortest=2), 4),
        ([7, 7, 7, 7], make_detection(0), None),
    ],
)
def test_a_pattern_counts_from_its_last_token(
    token_ids: list[int], detection: RepetitionDetectionParams, at: int | None
) -> None:
    assert first_repeat(token_ids, detection) == at


@pytest.mark.slow
def test_the_work_of_a_token_is_bounded_by_the_longest_pattern() -> None:
    detection = make_detection(MAX_COUNT, shortest=MAX_COUNT, count=1024)
    watch = RepetitionWatch(detection)
    for _ in range(3 * MAX_COUNT):
        watch.add(1)
    assert (len(watch._recent), len(watch._runs)) == (MAX_COUNT, MAX_COUNT)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("max_pattern_size", {"max_pattern_size": 1025}),
        ("max_pattern_size", {"max_pattern_size": True}),
        ("min_count", {"max_pattern_size": 3, "min_count": 1}),
        ("min_count", {"min_count": -1}),
        ("min_pattern_size", {"max_pattern_size": 3, "min_pattern_size": 4, "min_count": 2}),
    ],
)
def test_a_bad_rule_is_refused_by_name(field: str, values: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        RepetitionDetectionParams(**values)
    assert caught.value.field == f"repetition_detection.{field}"
