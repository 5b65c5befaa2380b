"""Every field of the sampling parameters: its default, its range, and the error outside it."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import pytest

from baton_core.errors import InvalidRequestError
from baton_core.requests.sampling_params import (
    MAX_BAD_WORDS,
    MAX_EXTRA_ARGS_BYTES,
    MAX_LOGIT_BIASES,
    MAX_LOGITS_PROCESSORS,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_N,
    MAX_STOP_CHARACTERS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    RequestOutputKind,
    SamplingParams,
    derived_seed,
    sequence_seed,
)
from baton_core.requests.structured_outputs import StructuredOutputsParams

INT = "an integer from {} to {}"
EXTRA_ARGS = f"an object that JSON can hold, in at most {MAX_EXTRA_ARGS_BYTES} bytes"
NUMBERS = (-0.1, math.nan, math.inf, 10**400, "1", None, True)


def test_defaults_are_those_of_vllm() -> None:
    assert asdict(SamplingParams()) == {
        "n": 1,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "seed": None,
        "stop": (),
        "stop_token_ids": (),
        "ignore_eos": False,
        "max_tokens": 16,
        "min_tokens": 0,
        "logprobs": None,
        "prompt_logprobs": None,
        "logprob_token_ids": None,
        "flat_logprobs": False,
        "detokenize": True,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
        "include_stop_str_in_output": False,
        "logit_bias": None,
        "allowed_token_ids": None,
        "bad_words": (),
        "structured_outputs": None,
        "repetition_detection": None,
        "thinking_token_budget": None,
        "logits_processors": (),
        "extra_args": None,
        "output_kind": RequestOutputKind.CUMULATIVE,
        "skip_reading_prefix_cache": None,
        "stream_interval": None,
    }


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
        *[("max_tokens", value, INT.format(1, 2**31)) for value in (0, -1, 2**31 + 1, 1.5, "1", True)],
        *[("stream_interval", value, INT.format(1, 2**31)) for value in (0, -1, 2**31 + 1, 1.5, "1", True)],
        *[("stop", value, "non-empty strings") for value in ("", ("a", ""), (1,), b"a")],
        ("stop", 5, "a list"),
        ("stop", ("x",) * (MAX_STOP_STRINGS + 1), f"at most {MAX_STOP_STRINGS}"),
        *[("stop_token_ids", (value,), INT.format(0, 2**31 - 1)) for value in (-1, 2**31, 1.0, "1", True)],
        ("stop_token_ids", 5, "a list"),
        ("stop_token_ids", (1,) * (MAX_STOP_TOKEN_IDS + 1), f"at most {MAX_STOP_TOKEN_IDS}"),
        *[
            (field, value, "true or false")
            for field in (
                *("ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "detokenize"),
                *("spaces_between_special_tokens", "flat_logprobs"),
            )
            for value in (1, None, "true")
        ],
        ("skip_reading_prefix_cache", 1, "true or false"),
        *[
            (field, value, "a finite number from -2 to 2")
            for field in ("presence_penalty", "frequency_penalty")
            for value in (-2.1, 2.1, *NUMBERS[1:])
        ],
        *[("repetition_penalty", value, "a finite number over 0") for value in (0, -1.0, *NUMBERS[1:])],
        *[("min_tokens", value, INT.format(0, 2**31)) for value in (-1, 2**31 + 1, 1.5, "1", None, True)],
        ("min_tokens", 17, "at most max_tokens, 16"),
        *[
            (field, value, INT.format(-1, 2**31))
            for field in ("logprobs", "prompt_logprobs")
            for value in (-2, 2**31 + 1, 1.5, "1", False)
        ],
        *[
            ("thinking_token_budget", value, INT.format(-1, 2**31))
            for value in (-2, 2**31 + 1, 1.5, "1", True)
        ],
        *[
            (field, [value], INT.format(0, 2**31 - 1))
            for field in ("allowed_token_ids", "logprob_token_ids")
            for value in (-1, 2**31, 1.0, "1", True)
        ],
        ("allowed_token_ids", [], "at least one token id"),
        ("logprob_token_ids", [], "at least one token id"),
        ("logprob_token_ids", [1] * (MAX_LOGPROB_TOKEN_IDS + 1), f"at most {MAX_LOGPROB_TOKEN_IDS}"),
        ("logit_bias", 5, "an object of token ids and numbers"),
        *[("logit_bias", {key: 1.0}, INT.format(0, 2**31 - 1)) for key in (-1, 2**31, "x", "-1", 1.5, None)],
        ("logit_bias", dict.fromkeys(range(MAX_LOGIT_BIASES + 1), 1.0), f"at most {MAX_LOGIT_BIASES}"),
        *[("bad_words", value, "non-empty strings") for value in ("", ("a", ""), (1,))],
        ("bad_words", "x" * (MAX_STOP_CHARACTERS + 1), f"at most {MAX_STOP_CHARACTERS} characters each"),
        ("bad_words", ("x",) * (MAX_BAD_WORDS + 1), f"at most {MAX_BAD_WORDS}"),
        ("bad_words", "\ud800", "text that UTF-8 can hold"),
        ("stop", "\ud800", "text that UTF-8 can hold"),
        ("structured_outputs", {"json_object": True}, "StructuredOutputsParams or None"),
        ("repetition_detection", {}, "RepetitionDetectionParams or None"),
        *[
            ("logits_processors", (value,), "names such as package.module:function")
            for value in (5, "module.function", None)
        ],
        ("logits_processors", ("m:f",) * (MAX_LOGITS_PROCESSORS + 1), f"at most {MAX_LOGITS_PROCESSORS}"),
        *[("extra_args", value, EXTRA_ARGS) for value in (5, [1], {"a": {1, 2}}, {"a": math.nan})],
        ("extra_args", {"a": "x" * MAX_EXTRA_ARGS_BYTES}, EXTRA_ARGS),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_a_bad_value_is_refused_by_name_with_what_is_allowed(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field} is ")
    assert str(caught.value).endswith(f"; allowed: {allowed}")


@pytest.mark.parametrize(("field", "value"), [("n", 0), ("temperature", -1.0), ("stop_token_ids", (-3,))])
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
        ("min_tokens", 16),
        ("presence_penalty", -2),
        ("frequency_penalty", 2.0),
        ("repetition_penalty", 1e-9),
        ("repetition_penalty", 1e30),
        ("logprobs", -1),
        ("logprobs", 0),
        ("prompt_logprobs", 2**31),
        ("thinking_token_budget", 0),
        ("allowed_token_ids", (2**31 - 1,)),
        ("logprob_token_ids", (0,)),
        ("logit_bias", {0: -1e30, 2**31 - 1: 1e30}),
        ("logits_processors", ("package.module:function", len)),
        ("extra_args", {}),
        ("skip_reading_prefix_cache", False),
    ],
)
def test_the_ends_of_a_range_are_allowed(field: str, value: Any) -> None:
    assert getattr(SamplingParams(**{field: value}), field) == value


@pytest.mark.parametrize(
    ("given", "kept"), [(None, ()), ("end", ("end",)), (["a", "b"], ("a", "b")), ((), ())]
)
def test_stop_takes_what_vllm_takes(given: Any, kept: tuple[str, ...]) -> None:
    assert SamplingParams(stop=given).stop == kept


def test_a_bias_that_is_no_number_is_refused_with_its_token() -> None:
    with pytest.raises(InvalidRequestError, match=r"logit_bias\[7\] is inf; allowed: a finite number$"):
        SamplingParams(logit_bias={7: math.inf})


def test_two_biases_of_one_token_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="logit_bias is '05'; allowed: one number for token 5"):
        SamplingParams(logit_bias={"5": 1, "05": -1})


@pytest.mark.parametrize(
    ("given", "kept"), [({"5": 1, 6: -2.5}, {5: 1.0, 6: -2.5}), ({}, None), (None, None)]
)
def test_biases_may_name_their_tokens_as_json_does(given: Any, kept: Any) -> None:
    assert SamplingParams(logit_bias=given).logit_bias == kept


def test_text_is_not_looked_for_where_there_is_none() -> None:
    with pytest.raises(InvalidRequestError, match=r"stop is .*; allowed: none where detokenize is false"):
        SamplingParams(stop="end", detokenize=False)


@pytest.mark.parametrize(
    ("changes", "is_read"),
    [
        ({}, True),
        ({"logprobs": 3}, True),
        ({"prompt_logprobs": 0}, False),
        ({"prompt_logprobs": 0, "skip_reading_prefix_cache": True}, False),
        ({"skip_reading_prefix_cache": True}, False),
        ({"skip_reading_prefix_cache": False}, True),
    ],
)
def test_cached_prefixes_are_read_unless_the_whole_prompt_is_needed(
    changes: dict[str, Any], is_read: bool
) -> None:
    assert SamplingParams(**changes).reads_prefix_cache is is_read


@pytest.mark.parametrize(
    ("changes", "are_changed"),
    [
        ({}, False),
        ({"temperature": 0.0, "top_k": 3, "min_p": 0.1, "bad_words": ["a"]}, False),
        ({"presence_penalty": 0.1}, True),
        ({"repetition_penalty": 1.1}, True),
        ({"min_tokens": 1}, True),
        ({"logit_bias": {3: 1.0}}, True),
        ({"allowed_token_ids": [3]}, True),
        ({"structured_outputs": StructuredOutputsParams(regex="a")}, True),
        ({"logits_processors": ["package.module:function"]}, True),
    ],
)
def test_logits_change_where_a_parameter_may_change_them(changes: dict[str, Any], are_changed: bool) -> None:
    assert SamplingParams(**changes).changes_logits is are_changed


def test_reading_cached_prefixes_does_not_go_with_prompt_logprobs() -> None:
    with pytest.raises(
        InvalidRequestError, match="skip_reading_prefix_cache is False; allowed: true or none"
    ):
        SamplingParams(prompt_logprobs=1, skip_reading_prefix_cache=False)


@pytest.mark.parametrize("field", ["seed", "thinking_token_budget"])
def test_minus_one_is_none(field: str) -> None:
    assert getattr(SamplingParams(**{field: -1}), field) is None


@pytest.mark.parametrize("field", ["seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs"])
def test_a_whole_float_is_an_integer(field: str) -> None:
    kept = getattr(SamplingParams(**{field: 7.0}), field)
    assert (kept, type(kept)) == (7, int)


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
def test_true_asks_for_the_log_probability_of_the_most_likely_token(field: str) -> None:
    kept = getattr(SamplingParams(**{field: True}), field)
    assert (kept, type(kept)) == (1, int)


def test_extra_arguments_are_a_copy_as_json_has_it() -> None:
    given = {"a": [1, (2,)]}
    params = SamplingParams(extra_args=given)
    given["a"].append(3)
    assert params.extra_args == {"a": [1, [2]]}


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
    keys = {sequence_seed(seed, index) for seed in (-1, 0, 1, 2**63 - 1, -(2**63)) for index in range(64)}
    assert len(keys) == 5 * 64
    assert all(0 <= key < 2**64 for key in keys)
    assert sequence_seed(7, 3) == sequence_seed(7, 3)


@pytest.mark.parametrize("seed", [0, 7, -3, 2**63 - 1, -(2**63)])
def test_a_derived_seed_asks_for_one_sequence_of_a_request_again(seed: int) -> None:
    assert derived_seed(seed, 0) == seed
    for index in (*range(64), MAX_N - 1):
        params = SamplingParams(seed=derived_seed(seed, index))
        assert params.seed is not None
        assert sequence_seed(params.seed, 0) == sequence_seed(seed, index)
