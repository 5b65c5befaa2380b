"""The one rule by which a worker ends a sequence."""

from __future__ import annotations

from typing import Any

import pytest

from baton_core.requests.finish import FinishReason, finish_reason
from tests.builders import EOS_TOKEN_ID, make_params

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def reason(
    token_id: int = 5, num_output: int = 1, num_tokens: int = 10, *, is_repeating: bool = False, **params: Any
) -> FinishReason | None:
    return finish_reason(
        make_params(**params),
        token_id=token_id,
        num_output_tokens=num_output,
        num_tokens=num_tokens,
        eos_token_ids=frozenset({EOS_TOKEN_ID}),
        max_model_len=32,
        is_repeating=is_repeating,
    )


def test_an_ordinary_token_goes_on() -> None:
    assert reason() is None


def test_the_end_token_stops_unless_it_is_ignored() -> None:
    assert reason(EOS_TOKEN_ID) is STOP
    assert reason(EOS_TOKEN_ID, ignore_eos=True) is None


def test_a_stop_token_stops_even_if_the_end_token_is_ignored() -> None:
    assert reason(5, stop_token_ids=(4, 5)) is STOP
    assert reason(EOS_TOKEN_ID, ignore_eos=True, stop_token_ids=(EOS_TOKEN_ID,)) is STOP


@pytest.mark.parametrize(("num_output", "expected"), [(2, None), (3, LENGTH)])
def test_max_tokens_ends_it(num_output: int, expected: FinishReason | None) -> None:
    assert reason(num_output=num_output, max_tokens=3) is expected


@pytest.mark.parametrize(("num_tokens", "expected"), [(31, None), (32, LENGTH)])
def test_the_length_of_the_model_ends_it(num_tokens: int, expected: FinishReason | None) -> None:
    assert reason(num_tokens=num_tokens, max_tokens=None) is expected


def test_a_stop_on_the_last_token_is_a_stop() -> None:
    assert reason(EOS_TOKEN_ID, num_output=8, num_tokens=32) is STOP


@pytest.mark.parametrize(("num_output", "expected"), [(2, None), (3, STOP)])
def test_nothing_stops_it_before_min_tokens(num_output: int, expected: FinishReason | None) -> None:
    assert reason(EOS_TOKEN_ID, num_output, min_tokens=3) is expected
    assert reason(5, num_output, min_tokens=3, stop_token_ids=(5,)) is expected


def test_the_length_of_the_model_ends_it_before_min_tokens_too() -> None:
    assert reason(EOS_TOKEN_ID, num_output=2, num_tokens=32, min_tokens=3) is LENGTH


@pytest.mark.parametrize(("num_output", "expected"), [(2, None), (3, FinishReason.REPETITION)])
def test_a_repetition_ends_it_after_min_tokens(num_output: int, expected: FinishReason | None) -> None:
    assert reason(num_output=num_output, is_repeating=True, min_tokens=3) is expected


def test_a_repetition_at_the_last_token_is_a_stop_or_a_length() -> None:
    assert reason(EOS_TOKEN_ID, is_repeating=True) is STOP
    assert reason(num_output=8, is_repeating=True) is LENGTH
