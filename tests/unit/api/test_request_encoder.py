"""Requests of `LLM` to a router: no parameter is forgotten on the way."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from baton.executors.request_encoder import (
    ENCODED_FIELDS,
    LOCAL_FIELDS,
    PLAIN_FIELDS,
    encode_params,
    encode_request,
)
from baton_core.errors import InvalidRequestError
from baton_core.requests.repetition import RepetitionDetectionParams
from baton_core.requests.sampling_params import RequestOutputKind, SamplingParams
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_router.grpc.client_messages import read_request
from baton_router.requests.generation import GenerationRequest
from tests.builders import make_request

CHANGED: dict[str, Any] = {
    "n": 3,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.25,
    "repetition_penalty": 1.5,
    "temperature": 0.75,
    "top_p": 0.5,
    "top_k": 5,
    "min_p": 0.25,
    "seed": -9,
    "stop": ("a", "b"),
    "stop_token_ids": (3, 4),
    "ignore_eos": True,
    "max_tokens": 77,
    "min_tokens": 5,
    "logprobs": 0,
    "prompt_logprobs": -1,
    "logprob_token_ids": (7,),
    "flat_logprobs": True,
    "detokenize": False,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "include_stop_str_in_output": True,
    "logit_bias": {5: -1.5},
    "allowed_token_ids": (1, 2),
    "bad_words": ("bad",),
    "structured_outputs": StructuredOutputsParams(choice=("x", "y"), disable_any_whitespace=True),
    "repetition_detection": RepetitionDetectionParams(max_pattern_size=4, min_pattern_size=2, min_count=3),
    "thinking_token_budget": 0,
    "logits_processors": ("package.module:function",),
    "extra_args": {"a": [1, None]},
    "output_kind": RequestOutputKind.DELTA,
    "stream_interval": 3,
    "skip_reading_prefix_cache": True,
}
"""A value other than the default for every parameter."""
FORMS: tuple[dict[str, Any], ...] = (
    {"json": {"type": "object"}},
    {"regex": "a+"},
    {"choice": ["a", "b"]},
    {"grammar": 'root ::= "a"'},
    {"json_object": True},
    {"structural_tag": {"format": {"type": "any_text"}}},
)


def as_the_router_reads_it(params: SamplingParams, defaults: SamplingParams) -> SamplingParams:
    spec = replace(make_request(), params=params)
    request: GenerationRequest = read_request(encode_request(spec, max_model_len=1000))
    return replace(defaults, **request.sampling)


def test_every_parameter_is_sent_or_is_the_caller_s_own() -> None:
    names = [*PLAIN_FIELDS, *ENCODED_FIELDS, *LOCAL_FIELDS]
    assert sorted(names) == sorted(field.name for field in fields(SamplingParams))
    assert CHANGED.keys() == set(names)


@pytest.mark.parametrize("name", [name for name in CHANGED if name not in LOCAL_FIELDS])
def test_a_router_reads_what_was_given(name: str) -> None:
    given = {"seed": 1, "detokenize": True, name: CHANGED[name]}
    params = SamplingParams(**given)
    assert getattr(params, name) != getattr(SamplingParams(), name)
    assert as_the_router_reads_it(params, SamplingParams()) == params


def test_defaults_are_sent_too_where_the_router_has_others() -> None:
    others = SamplingParams(
        temperature=0.1, top_p=0.5, top_k=3, min_p=0.5, repetition_penalty=1.2, max_tokens=4
    )
    params = SamplingParams(seed=3)
    assert as_the_router_reads_it(params, others) == params


@pytest.mark.parametrize("form", FORMS, ids=lambda form: next(iter(form)))
def test_every_form_of_an_output_is_sent(form: dict[str, Any]) -> None:
    params = SamplingParams(seed=1, structured_outputs=StructuredOutputsParams(**form))
    assert as_the_router_reads_it(params, SamplingParams()) == params


def test_without_a_limit_there_are_as_many_tokens_as_the_context_holds() -> None:
    spec = replace(make_request(prompt=30), params=SamplingParams(seed=1, max_tokens=None))
    assert encode_request(spec, max_model_len=100).sampling_params.max_tokens == 70


def test_the_rest_of_a_request_is_sent() -> None:
    spec = make_request("name", prompt=5, cache_salt="salt", priority=-3)
    request = read_request(encode_request(spec, max_model_len=100))
    assert (request.request_id, request.cache_salt, request.priority) == ("name", "salt", -3)
    assert request.prompt == spec.prompt_token_ids


def test_a_function_of_this_process_is_not_sent() -> None:
    params = SamplingParams(seed=1, logits_processors=(lambda token_ids, logits: logits,))
    with pytest.raises(
        InvalidRequestError, match=r"logits_processors is <function .*allowed: a name such as"
    ):
        encode_params(params)
