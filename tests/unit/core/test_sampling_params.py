"""Every field of the sampling parameters: its default, its range, and the error outside it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from baton_core.errors import InvalidRequestError
from baton_core.sampling_params import (
    MAX_N,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    SamplingParams,
    sequence_seed,
)

INT = "an integer from {} to {}"
NUMBERS = (-0.1, math.nan, math.inf, 10**400, "1", None, True)


def test_defaults_are_those_of_vllm() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (1, 1.0, 1.0, 0, 0.0)
    assert (params.seed, params.stop, params.stop_token_ids, params.ignore_eos) == (None, (), (), False)
    assert (params.max_tokens, params.include_stop_str_in_output) == (16, False)
    assert params.skip_special_tokens is True


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        *[("n", value, INT.format(1, MAX_N)) for value in (0, MAX_N + 1, 1.5, "2", None, True)],
        *[("temperature", value, "a finite number from 0") for value in NUMBERS],
        *[("top_p", value, "a finite number over 0 to 1") for value in (0, 1.01, *NUMBERS)],
        *[("top_k", value, INT.format(-1, 2**31)) for value in (-2, 2**31 + 1, 1.0, None, False)],
        *[("min_p", value, "a finite number from 0 to 1") for value in (1.01, *NUMBERS)],
        *[
            ("seed", value, INT.format(-(2**63), 2**63 - 1))
            for value in (2**63, -(2**63) - 1, 0.5, "1", True)
        ],
        *[("max_tokens", value, INT.format(1, 2**31)) for value in (0, -1, 2**31 + 1, 1.0, "1", True)],
        *[("stop", value, "non-empty strings") for value in ("", ("a", ""), (1,), b"a")],
        ("stop", 5, "a list"),
        ("stop", ("x",) * (MAX_STOP_STRINGS + 1), f"at most {MAX_STOP_STRINGS}"),
        *[("stop_token_ids", (value,), INT.format(0, 2**31 - 1)) for value in (-1, 2**31, 1.0, "1", True)],
        ("stop_token_ids", 5, "a list"),
        ("stop_token_ids", (1,) * (MAX_STOP_TOKEN_IDS + 1), f"at most {MAX_STOP_TOKEN_IDS}"),
        *[
            (field, value, "true or false")
            for field in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens")
            for value in (1, None, "true")
        ],
    ],
    ids=lambda value: repr(value)[:24],
)
def test_a_bad_value_is_refused_by_name_with_what_is_allowed(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field} is ")
    assert str(caught.value).endswith(f"; allowed: {allowed}")


@pytest.mark.parametrize(("field", "value"), [("n", 99), ("temperature", -1.0), ("stop_token_ids", (-3,))])
def test_the_message_shows_the_value(field: str, value: Any) -> None:
    shown = value[0] if isinstance(value, tuple) else value
    with pytest.raises(InvalidRequestError, match=f"{field} is {shown!r};"):
        SamplingParams(**{field: value})


def test_a_long_value_is_shortened_in_the_message() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(n="x" * 1000)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", MAX_N),
        ("temperature", 0),
        ("temperature", 100.0),
        ("top_p", 1),
        ("top_p", 1e-9),
        ("top_k", -1),
        ("top_k", 2**31),
        ("min_p", 1.0),
        ("seed", -(2**63)),
        ("seed", 2**63 - 1),
        ("max_tokens", 1),
        ("max_tokens", None),
    ],
)
def test_the_ends_of_a_range_are_allowed(field: str, value: Any) -> None:
    assert getattr(SamplingParams(**{field: value}), field) == value


@pytest.mark.parametrize(
    ("given", "kept"), [(None, ()), ("end", ("end",)), (["a", "b"], ("a", "b")), ((), ())]
)
def test_stop_takes_what_vllm_takes(given: Any, kept: tuple[str, ...]) -> None:
    assert SamplingParams(stop=given).stop == kept


def test_lists_are_copied_into_tuples() -> None:
    ids = [1, 2]
    params = SamplingParams(stop_token_ids=ids)  # type: ignore[arg-type]
    ids.append(3)
    assert params.stop_token_ids == (1, 2)


@pytest.mark.parametrize(
    ("temperature", "is_greedy"), [(0.0, True), (9e-6, True), (1e-5, False), (1.0, False)]
)
def test_a_vanishing_temperature_is_greedy(temperature: float, is_greedy: bool) -> None:
    assert SamplingParams(temperature=temperature).is_greedy is is_greedy


def test_each_sequence_of_a_request_has_its_own_noise() -> None:
    keys = {sequence_seed(seed, index) for seed in (-1, 0, 1, 2**63 - 1, -(2**63)) for index in range(MAX_N)}
    assert len(keys) == 5 * MAX_N
    assert all(0 <= key < 2**64 for key in keys)
    assert sequence_seed(7, 3) == sequence_seed(7, 3)
