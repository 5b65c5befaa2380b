"""Parameters as callers write them: order, what they read as, changes, copies, and what requests work on."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import msgspec
import numpy as np
import pytest

from baton import (
    BeamSearchParams,
    PoolingParams,
    RepetitionDetectionParams,
    SamplingParams,
    StructuredOutputsParams,
)
from baton.sampling_params import RequestOutputKind, SamplingType
from baton_core.errors import InvalidRequestError
from baton_core.requests import sampling_params as core

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


class ModelConfig:
    """The part of vLLM's configuration that `verify` reads."""

    def __init__(self, vocab_size: int = 100, max_logprobs: int = 20) -> None:
        self._vocab_size = vocab_size
        self.max_logprobs = max_logprobs

    def get_vocab_size(self) -> int:
        return self._vocab_size


class Letters:
    """A tokenizer of 26 letters and the space."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [" abcdefghijklmnopqrstuvwxyz".index(letter) for letter in text]

    def __len__(self) -> int:
        return 27


def test_positions_are_those_of_vllm() -> None:
    params = SamplingParams(2, 0.1, 0.2, 1.3, 0.4, 0.5, 6, 0.7, 8, "end", [9], True, 12, 3, 1, 2)
    assert (params.n, params.presence_penalty, params.frequency_penalty) == (2, 0.1, 0.2)
    assert (params.repetition_penalty, params.temperature, params.top_p) == (1.3, 0.4, 0.5)
    assert (params.top_k, params.min_p, params.seed, params.stop) == (6, 0.7, 8, ["end"])
    assert (params.stop_token_ids, params.ignore_eos, params.max_tokens) == ([9], True, 12)
    assert (params.min_tokens, params.logprobs, params.prompt_logprobs) == (3, 1, 2)


def test_every_field_of_a_request_is_a_caller_s_with_the_same_default() -> None:
    params = SamplingParams()
    assert params.frozen() == core.SamplingParams()
    assert {one.name for one in fields(core.SamplingParams)} <= set(params.__struct_fields__)


@pytest.mark.parametrize("field", ["stop", "stop_token_ids", "bad_words", "logits_processors"])
def test_lists_that_are_not_given_read_as_empty_lists(field: str) -> None:
    assert getattr(SamplingParams(), field) == []


def test_lists_read_as_lists_of_their_own() -> None:
    given = [3, 4]
    params = SamplingParams(stop="a", stop_token_ids=given, allowed_token_ids=(5,))
    given.append(5)
    assert (params.stop, params.stop_token_ids, params.allowed_token_ids) == (["a"], [3, 4], [5])


def test_values_read_as_they_are_understood() -> None:
    params = SamplingParams(seed=-1, max_tokens=16.0, thinking_token_budget=-1)  # type: ignore[arg-type]
    assert (params.seed, params.max_tokens, params.thinking_token_budget) == (None, 16, None)


def test_numbers_of_arrays_read_as_plain_ones() -> None:
    ids = np.arange(2)
    half: Any = np.float32(0.5)
    params = SamplingParams(
        n=ids[1],
        seed=np.int64(3),  # type: ignore[arg-type]
        temperature=half,
        top_p=np.float64(0.5),
        stop_token_ids=list(ids),
        logit_bias={ids[1]: half},
    )
    assert repr((params.n, params.seed, params.temperature, params.top_p)) == "(1, 3, 0.5, 0.5)"
    assert repr((params.stop_token_ids, params.frozen().logit_bias)) == "([0, 1], {1: 0.5})"
    with pytest.raises(InvalidRequestError, match="seed is 0\\.5"):
        SamplingParams(seed=half)


def test_a_request_works_on_what_the_object_was_then() -> None:
    params = SamplingParams(
        stop=["a"], extra_args={"a": [1]}, structured_outputs=StructuredOutputsParams(regex="a")
    )
    then = params.frozen()
    params.max_tokens = 5
    params.stop.append("b")  # type: ignore[union-attr]
    params.extra_args["a"].append(2)  # type: ignore[index]
    params.structured_outputs.regex = "b"  # type: ignore[union-attr]
    assert (then.max_tokens, then.stop, then.extra_args) == (16, ("a",), {"a": [1]})
    now = params.frozen()
    assert (now.max_tokens, now.stop, now.extra_args) == (5, ("a", "b"), {"a": [1, 2]})
    assert (then.structured_outputs.regex, now.structured_outputs.regex) == ("a", "b")  # type: ignore[union-attr]


def test_a_changed_object_is_checked_again() -> None:
    params = SamplingParams()
    params.temperature = -1.0
    with pytest.raises(ValueError, match=r"temperature is -1\.0; allowed: a finite number from 0"):
        params.frozen()


def test_parameters_are_equal_by_their_values_and_have_no_hash() -> None:
    assert SamplingParams(seed=1) == SamplingParams(seed=1)
    assert SamplingParams(seed=1) != SamplingParams(seed=2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(SamplingParams())


def test_a_clone_shares_nothing_unless_it_may() -> None:
    params = SamplingParams(stop=["a"], logit_bias={1: 1.0})
    clone = params.clone()
    clone.stop.append("b")  # type: ignore[union-attr]
    clone.logit_bias[2] = 2.0  # type: ignore[index]
    assert (params.stop, params.logit_bias) == (["a"], {1: 1.0})
    shallow = SamplingParams(stop=["a"], skip_clone=True)
    assert shallow.clone().stop is shallow.stop
    assert shallow.clone() is not shallow


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("routed_experts_prompt_start", 3, "0: routed experts are not returned"),
        ("trace_decode_token_ids", [1], "None: tokens are sampled, not replayed"),
        ("prompt_logprob_token_ids", [1], "None: prompt_logprobs gives the most likely tokens"),
        ("prompt_logprob_start", 2, "None: prompt_logprobs begin with the prompt"),
        ("watermarking", True, "None: outputs have no watermark"),
        ("best_of", 2, "None: all n sequences are returned"),
        ("structured_outputs", {"regex": "a"}, "StructuredOutputsParams or None"),
    ],
)
def test_what_has_no_meaning_here_is_refused_with_the_reason(field: str, value: Any, reason: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{field: value})
    assert str(caught.value).startswith(f"{field} is ")
    assert str(caught.value).endswith(f"; allowed: {reason}")


def test_an_unknown_name_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="use_beam_search"):
        SamplingParams(use_beam_search=True)  # type: ignore[call-arg]


def test_none_means_the_default_of_optional_parameters() -> None:
    params = SamplingParams.from_optional(
        temperature=None, top_p=0.5, stop=None, logit_bias={"5": 200, 6: -1}
    )
    assert params == SamplingParams(top_p=0.5, logit_bias={5: 100.0, 6: -1.0})
    assert SamplingParams.from_optional(max_tokens=None, min_tokens=20).max_tokens is None


def test_the_first_optional_parameters_may_be_positional() -> None:
    params = SamplingParams.from_optional(2, 0.5, None, 1.2, 0.7, 0.9, 5, 0.1, 3, "end", [7])
    assert params == SamplingParams(2, 0.5, 0.0, 1.2, 0.7, 0.9, 5, 0.1, 3, "end", [7])
    with pytest.raises(TypeError, match="multiple values for keyword argument 'n'"):
        SamplingParams.from_optional(2, n=2)
    with pytest.raises(TypeError, match="takes 11 positional arguments, not 12"):
        SamplingParams.from_optional(*[None] * 12)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"temperature": 0}, SamplingType.GREEDY),
        ({"temperature": 0, "seed": 1}, SamplingType.GREEDY),
        ({}, SamplingType.RANDOM),
        ({"seed": 1}, SamplingType.RANDOM_SEED),
    ],
)
def test_the_sampling_type_follows_temperature_and_seed(
    given: dict[str, Any], expected: SamplingType
) -> None:
    params = SamplingParams(**given)
    assert params.sampling_type is expected
    params.temperature = 0.0
    assert params.sampling_type is SamplingType.GREEDY


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, None), ({"logprobs": 0}, 0), ({"logprob_token_ids": [7, 8]}, 2), ({"logprobs": -1}, -1)],
)
def test_the_number_of_log_probabilities_counts_named_tokens(
    given: dict[str, Any], expected: int | None
) -> None:
    assert SamplingParams(**given).num_logprobs == expected


def test_text_is_held_back_for_the_longest_stop_string() -> None:
    assert SamplingParams(stop=["ab", "abcd"]).output_text_buffer_length == 3
    assert SamplingParams(stop="abcd", include_stop_str_in_output=True).output_text_buffer_length == 0


def test_end_tokens_of_a_generation_config_become_stop_tokens() -> None:
    params = SamplingParams(stop_token_ids=[9])
    params.update_from_generation_config({"eos_token_id": [1, 2]}, 1)
    assert (params.eos_token_id, params.stop_token_ids) == (1, [9, 2])
    assert params.all_stop_token_ids == {1, 2, 9}
    assert params.frozen().stop_token_ids == (9, 2)


def test_end_tokens_that_are_ignored_are_only_held_off() -> None:
    params = SamplingParams(ignore_eos=True)
    params.update_from_generation_config({"eos_token_id": 2}, 1)
    assert (params.eos_token_id, params.stop_token_ids, params.all_stop_token_ids) == (None, [], {1, 2})


def test_bad_words_are_written_by_the_tokenizer() -> None:
    params = SamplingParams(bad_words=["ab"])
    params.update_from_tokenizer(Letters())
    assert params.bad_words_token_ids == [[1, 2], [0, 1, 2]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"logit_bias": {100: 1.0}}, "logit_bias is 100; allowed: token ids from 0 to 99"),
        ({"allowed_token_ids": [100]}, "allowed_token_ids is 100; allowed: token ids from 0 to 99"),
        ({"logprobs": 21}, "logprobs is 21; allowed: 0 to 20"),
        ({"prompt_logprobs": -1}, "prompt_logprobs is -1; allowed: 0 to 20"),
    ],
)
def test_parameters_are_verified_against_a_model(given: dict[str, Any], message: str) -> None:
    params = SamplingParams(**given)
    with pytest.raises(InvalidRequestError, match=message):
        params.verify(ModelConfig(), None, None, None)
    params.verify(ModelConfig(vocab_size=101, max_logprobs=-1), None, None, None)


def test_biases_are_validated_alone() -> None:
    params = SamplingParams(logit_bias={100: 1.0}, logprobs=21)
    with pytest.raises(InvalidRequestError, match="logit_bias is 100"):
        params._validate_logit_bias(ModelConfig())
    params._validate_logit_bias(ModelConfig(vocab_size=101))


def test_the_parameters_of_a_warm_up_use_every_rule() -> None:
    params = SamplingParams.for_sampler_warmup().frozen()
    assert params.has_penalties
    assert None not in (params.logit_bias, params.logprobs, params.prompt_logprobs)
    assert {params.top_p, params.min_p}.isdisjoint({0.0, 1.0})


def test_parameters_made_of_a_request_s_are_the_same_again() -> None:
    frozen = core.SamplingParams(temperature=0.5, stop=("a",), top_k=3)
    params = SamplingParams.from_frozen(frozen)
    assert params.stop == ["a"]
    assert params.frozen() == frozen


def test_a_grammar_is_written_by_position_and_reads_as_given() -> None:
    params = StructuredOutputsParams(SCHEMA, None, None, None, None, True)
    assert params.json is SCHEMA
    assert params.disable_any_whitespace
    assert not params.all_constraints_none()
    assert params.frozen().json == '{"type": "object", "properties": {"a": {"type": "integer"}}}'
    choice = StructuredOutputsParams(choice=["a", "b"])
    assert (choice.choice, choice.frozen().choice, choice.json_object) == (["a", "b"], ("a", "b"), None)


def test_a_structural_tag_is_told_apart_from_the_other_constraints() -> None:
    params = StructuredOutputsParams(structural_tag={"format": {"type": "any_text"}})
    assert params.all_non_structural_tag_constraints_none()
    assert not params.all_constraints_none()


def test_several_constraints_are_refused_also_later() -> None:
    with pytest.raises(InvalidRequestError, match="structured_outputs is 'json and regex'"):
        StructuredOutputsParams(SCHEMA, "a")
    params = SamplingParams(structured_outputs=StructuredOutputsParams(SCHEMA))
    params.structured_outputs.regex = "a"  # type: ignore[union-attr]
    with pytest.raises(InvalidRequestError, match="structured_outputs is 'json and regex'"):
        params.frozen()


def test_a_pattern_of_white_space_is_refused_with_what_there_is() -> None:
    with pytest.raises(InvalidRequestError, match=r"whitespace_pattern is .*disable_any_whitespace"):
        StructuredOutputsParams(regex="a", whitespace_pattern=r"[ ]?")


def test_repetition_detection_takes_positions_and_changes() -> None:
    detection = RepetitionDetectionParams(4, 2, 3)
    params = SamplingParams(repetition_detection=detection)
    detection.min_count = 5
    assert params.frozen().repetition_detection.min_count == 5  # type: ignore[union-attr]
    with pytest.raises(
        InvalidRequestError, match=r"repetition_detection\.min_count is 1; allowed: 2 or more"
    ):
        RepetitionDetectionParams(4, 2, 1)


def test_beams_take_positions_and_changes_are_checked() -> None:
    params = BeamSearchParams(2, 8, True, 0.0, 0.5, True)
    assert (params.beam_width, params.max_tokens, params.ignore_eos) == (2, 8, True)
    assert (params.temperature, params.length_penalty, params.include_stop_str_in_output) == (0.0, 0.5, True)
    params.beam_width = 0
    with pytest.raises(InvalidRequestError, match="beam_width is 0; allowed: an integer of at least 1"):
        params.check()


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("structured_outputs", StructuredOutputsParams(regex="a"), "beams follow no grammar"),
        ("watermarking", True, "outputs have no watermark"),
        ("temperature", 0.5, "beam search draws nothing"),
    ],
)
def test_what_beams_do_not_do_is_refused_with_the_reason(field: str, value: Any, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"{field} is .*; allowed: .*{reason}"):
        BeamSearchParams(2, 8, **{field: value})


@pytest.mark.parametrize(
    "params",
    [SamplingParams(stop="a", n=2, seed=1), BeamSearchParams(2, 8, True), PoolingParams(dimensions=2)],
)
def test_objects_are_rebuilt_from_the_fields_that_structs_name(params: Any) -> None:
    given = {name: getattr(params, name) for name in type(params).__struct_fields__}
    assert type(params)(**given) == params


def test_parameters_can_be_replaced_by_field() -> None:
    changed = msgspec.structs.replace(SamplingParams(stop="a"), output_kind=RequestOutputKind.DELTA)
    assert (changed.stop, changed.output_kind) == (["a"], RequestOutputKind.DELTA)
    with pytest.raises(InvalidRequestError, match="n is 0; allowed"):
        msgspec.structs.replace(changed, n=0)
    assert msgspec.structs.replace(BeamSearchParams(2, 8), beam_width=3) == BeamSearchParams(3, 8)
    assert msgspec.structs.replace(PoolingParams(), dimensions=2) == PoolingParams(dimensions=2)


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, SamplingParams.clone, lambda given: pickle.loads(pickle.dumps(given))],  # noqa: S301
)
def test_copies_are_equal_and_know_the_model_s_tokens(
    copied: Callable[[SamplingParams], SamplingParams],
) -> None:
    params = SamplingParams(
        stop="a",
        bad_words=["ab"],
        structured_outputs=StructuredOutputsParams(regex="a+"),
        repetition_detection=RepetitionDetectionParams(max_pattern_size=3, min_count=2),
    )
    params.update_from_generation_config({"eos_token_id": [1, 2]}, 1)
    params.update_from_tokenizer(Letters())
    other = copied(params)
    assert (other, other.frozen()) == (params, params.frozen())
    assert (other.eos_token_id, other.all_stop_token_ids) == (1, {1, 2})
    assert other.bad_words_token_ids == params.bad_words_token_ids
    other.temperature = 0.5
    assert params.temperature == 1.0
