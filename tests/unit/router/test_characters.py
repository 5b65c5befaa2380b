"""Characters of bytes that come in pieces, and the texts of tokens that are parts of characters."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_core.requests.logprobs import PositionLogprobs
from baton_router.text.characters import REPLACEMENT, CharacterStream, TokenTexts

EURO = "€".encode()
TOKENS = (b"a", EURO[:1], EURO[1:2], EURO[2:], b"x" + EURO[:2], b"\x80", EURO, REPLACEMENT.encode(), b"\x80 ")
"""The bytes of tokens by their ids."""
A, FIRST, SECOND, LAST, X_AND_HALF, BROKEN, WHOLE, GENUINE, BROKEN_AND_SPACE = range(len(TOKENS))


def position(*token_ids: int) -> PositionLogprobs:
    return PositionLogprobs(
        token_ids=token_ids, logprobs=(-1.0,) * len(token_ids), ranks=(1,) * len(token_ids)
    )


def texts_of(*positions: Sequence[int]) -> list[list[str]]:
    texts = TokenTexts(lambda token_id: TOKENS[token_id].decode(errors="replace"), TOKENS.__getitem__)
    return [texts.read(position(*token_ids)) for token_ids in positions]


def up_to_the_last_character(data: bytes) -> str:
    """Return the text of `data` without the bytes at its end that end no character."""
    for end in range(len(data), 0, -1):
        text = data[:end].decode(errors="replace")
        if not text.endswith(REPLACEMENT) or data[:end].endswith(TOKENS[GENUINE]):
            return text
    return ""


@given(st.lists(st.sampled_from(TOKENS), max_size=12))
def test_all_that_is_shown_is_the_text_decoded_at_once_without_a_broken_end(pieces: list[bytes]) -> None:
    stream = CharacterStream()
    assert "".join(map(stream.push, pieces)) == up_to_the_last_character(b"".join(pieces))


def test_broken_bytes_wait_for_the_character_behind_them_however_many_they_are() -> None:
    stream = CharacterStream()
    assert [stream.push(b"\x80") for _ in range(1000)] == [""] * 1000
    assert stream.push(b"a") == REPLACEMENT * 1000 + "a"
    assert stream.push(b"b") == "b"


def test_a_replacement_character_that_the_model_writes_is_shown_at_once() -> None:
    assert CharacterStream().push(REPLACEMENT.encode()) == REPLACEMENT


def test_the_last_part_of_a_character_has_its_text_and_the_others_have_none() -> None:
    assert texts_of([A], [FIRST], [SECOND], [LAST], [A]) == [["a"], [""], [""], ["€"], ["a"]]


def test_others_at_a_position_are_read_after_the_tokens_before_it() -> None:
    assert texts_of([FIRST, BROKEN], [SECOND, A, WHOLE, LAST], [A, LAST]) == [
        ["", ""],
        ["", "a", "€", ""],
        ["a", "€"],
    ]


def test_what_comes_before_half_a_character_is_shown_with_the_character() -> None:
    assert texts_of([X_AND_HALF, A], [LAST], [LAST, X_AND_HALF]) == [["", "a"], ["x€"], ["", ""]]


def test_broken_bytes_before_a_character_are_no_part_of_it() -> None:
    assert texts_of([BROKEN], [BROKEN], [FIRST], [SECOND], [LAST]) == [[""], [""], [""], [""], ["€"]]


@pytest.mark.parametrize(
    ("token_id", "text"), [(GENUINE, REPLACEMENT), (BROKEN_AND_SPACE, f"{REPLACEMENT} ")]
)
def test_what_is_no_part_of_a_character_stays(token_id: int, text: str) -> None:
    assert texts_of([token_id]) == [[text]]
