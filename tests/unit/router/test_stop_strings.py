from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_router.text.stop_strings import StopMatcher

_TEXT = st.text(alphabet="abx", max_size=24)
_STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=4)


def run(pieces: list[str], stop: list[str], *, include_stop: bool = False) -> tuple[str, str | None]:
    matcher = StopMatcher(stop, include_stop=include_stop)
    shown = ""
    for piece in pieces:
        text, matched = matcher.push(piece)
        shown += text
        if matched is not None:
            return shown, matched
    return shown + matcher.flush(), None


def first_match(text: str, stop: list[str]) -> tuple[int, int] | None:
    """Return start and end of the match that ends first, by trying every slice."""
    for end in range(1, len(text) + 1):
        for start in range(end):
            if text[start:end] in stop:
                return start, end
    return None


@given(pieces=st.lists(_TEXT, max_size=6), stop=_STOPS, include_stop=st.booleans())
def test_the_result_is_that_of_searching_the_whole_text_however_it_is_cut(
    pieces: list[str], stop: list[str], include_stop: bool
) -> None:
    text = "".join(pieces)
    match = first_match(text, stop)
    expected = (text, None)
    if match is not None:
        start, end = match
        expected = (text[: end if include_stop else start], text[start:end])
    assert run(pieces, stop, include_stop=include_stop) == expected


@given(pieces=st.lists(_TEXT, max_size=6), stop=_STOPS)
def test_shown_text_is_never_part_of_a_later_match_and_no_more_is_held_than_could_match(
    pieces: list[str], stop: list[str]
) -> None:
    matcher = StopMatcher(stop, include_stop=False)
    seen = shown = ""
    for piece in pieces:
        seen += piece
        text, matched = matcher.push(piece)
        shown += text
        if matched is not None:
            return
        held = seen[len(shown) :]
        assert seen == shown + held
        assert held == "" or any(text.startswith(held) for text in stop)


def test_text_that_turns_out_not_to_be_a_stop_string_is_released() -> None:
    matcher = StopMatcher(["\n\nUser:"], include_stop=False)
    assert matcher.push("one\n\nUs") == ("one", None)
    assert matcher.push("ual") == ("\n\nUsual", None)


def test_a_beginning_inside_a_failed_beginning_still_matches() -> None:
    assert run(["aa", "ab", "!"], ["aab"]) == ("a", "aab")


@pytest.mark.parametrize("order", [["abcd", "bc"], ["bc", "abcd"]])
def test_the_match_that_ends_first_wins_whatever_the_order(order: list[str]) -> None:
    assert run(["abcd"], order) == ("a", "bc")


def test_of_matches_that_end_together_the_longest_wins() -> None:
    assert run(["xabc"], ["bc", "abc"]) == ("x", "abc")


def test_nothing_is_held_back_when_stop_strings_are_shown() -> None:
    matcher = StopMatcher(["stop"], include_stop=True)
    assert matcher.push("a st") == ("a st", None)
    assert matcher.push("op now") == ("op", "stop")


def test_a_long_stop_string_costs_time_in_proportion_to_the_text() -> None:
    matcher = StopMatcher(["a" * 1000 + "b"], include_stop=False)
    assert matcher.push("a" * 100_000) == ("a" * 99_000, None)
    assert matcher.push("b") == ("", "a" * 1000 + "b")
