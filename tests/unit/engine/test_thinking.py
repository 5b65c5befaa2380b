"""Budgets of thinking, against a reading of the whole output at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_core.requests.sampling_rules import ThinkingBudget
from baton_engine.sampling.thinking import Thinking

START, END = (7, 8), (9, 7, 9)


def forced_after(output: list[int], **budget) -> int | None:
    thinking = Thinking(ThinkingBudget(**budget))
    for token_id in output:
        thinking.advance(token_id)
    return thinking.forced_token_id


def generate(drawn: list[int], **budget) -> list[int]:
    """Let the model draw `drawn`, except where a token is forced."""
    thinking, output = Thinking(ThinkingBudget(**budget)), []
    for token_id in drawn:
        forced = thinking.forced_token_id
        output.append(token_id if forced is None else forced)
        thinking.advance(output[-1])
    return output


def test_the_end_is_written_once_the_budget_is_spent() -> None:
    budget = {"num_tokens": 3, "start_token_ids": (), "end_token_ids": END}
    assert generate([1] * 10, **budget) == [1, 1, 1, *END, 1, 1, 1, 1]


def test_a_budget_of_0_ends_the_thinking_at_once() -> None:
    assert generate([1] * 5, num_tokens=0, start_token_ids=(), end_token_ids=(9,)) == [9, 1, 1, 1, 1]
    started = {"num_tokens": 0, "start_token_ids": START, "end_token_ids": (9,)}
    assert generate([1, 7, 8, 1, 1], **started) == [1, 7, 8, 9, 1]


def test_nothing_is_forced_before_the_start_nor_after_the_models_own_end() -> None:
    budget = {"num_tokens": 2, "start_token_ids": START, "end_token_ids": END}
    assert generate([1] * 9, **budget) == [1] * 9
    own_end = [*START, 1, *END, 1, 1, 1]
    assert generate(own_end, **{**budget, "num_tokens": 4}) == own_end


def test_an_end_begun_within_the_budget_is_completed() -> None:
    budget = {"num_tokens": 3, "start_token_ids": (), "end_token_ids": END}
    assert generate([1, 1, 9, 1, 1, 1], **budget) == [1, 1, 9, 7, 9, 1]
    assert generate([1, 9, 1, 1, 1, 1, 1], **budget) == [1, 9, 1, 9, 7, 9, 1]


def test_another_thought_has_the_whole_budget() -> None:
    budget = {"num_tokens": 2, "start_token_ids": (7,), "end_token_ids": (9,)}
    assert generate([7, 1, 1, 1, 7, 1, 1, 1, 1], **budget) == [7, 1, 1, 9, 7, 1, 1, 9, 1]


@pytest.mark.parametrize("start", [(), (7,), (7, 8), (8, 8, 7)])
@given(
    output=st.lists(st.integers(7, 10), max_size=30),
    end=st.lists(st.integers(7, 10), min_size=1, max_size=4).map(tuple),
    num_tokens=st.integers(0, 8),
)
def test_what_is_forced_is_what_the_whole_output_says(
    start: tuple[int, ...], output: list[int], end: tuple[int, ...], num_tokens: int
) -> None:
    found = forced_after(output, num_tokens=num_tokens, start_token_ids=start, end_token_ids=end)
    assert found == read_at_once(output, start, end, num_tokens)


def read_at_once(
    output: list[int], start: tuple[int, ...], end: tuple[int, ...], num_tokens: int
) -> int | None:
    """Cut the output at each marker's first completion; the rest decides."""
    rest, is_thinking = tuple(output), not start
    while True:
        marker = end if is_thinking else start
        stops = [
            at for at in range(len(marker), len(rest) + 1) if marker and rest[at - len(marker) : at] == marker
        ]
        if not stops:
            break
        rest, is_thinking = rest[stops[0] :], not is_thinking
    if not is_thinking or len(rest) < num_tokens:
        return None
    begun = max(length for length in range(len(end)) if rest[len(rest) - length :] == end[:length])
    return end[begun]
