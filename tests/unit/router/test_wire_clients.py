from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from baton.executors.request_encoder import encode_params
from baton_core.errors import InvalidRequestError
from baton_core.requests.logprobs import PositionLogprobs
from baton_core.requests.repetition import RepetitionDetectionParams
from baton_core.requests.sampling_params import SamplingParams
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_proto.v1 import baton_pb2 as pb
from baton_router.core.router_events import RequestTimings
from baton_router.grpc.client_messages import encode_event, read_request, read_tokenize_prompt
from baton_router.requests.generation import Delta, Finished, GenerationRequest, PromptDelta
from baton_router.text.chat_template import Conversation

NOT_ON_THE_WIRE = {"flat_logprobs", "output_kind"}
"""How Python shows what it got; gRPC has one way."""
CHAT = pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")])
VALUES: dict[str, Any] = {
    "n": 3,
    "temperature": 0.25,
    "top_p": 0.5,
    "top_k": -1,
    "min_p": 0.125,
    "seed": -7,
    "stop": ("a", "b"),
    "stop_token_ids": (5, 6),
    "ignore_eos": True,
    "max_tokens": 9,
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "presence_penalty": -1.5,
    "frequency_penalty": 1.5,
    "repetition_penalty": 1.25,
    "min_tokens": 2,
    "logprobs": -1,
    "prompt_logprobs": 0,
    "logprob_token_ids": (7, 8),
    "detokenize": True,
    "spaces_between_special_tokens": False,
    "logit_bias": {3: -100.0, 4: 0.5},
    "allowed_token_ids": (3, 4),
    "bad_words": ("bad",),
    "thinking_token_budget": 0,
    "logits_processors": ("package:function",),
    "skip_reading_prefix_cache": True,
    "stream_interval": 3,
}
NESTED: dict[str, tuple[Any, Any]] = {
    "structured_outputs": (pb.StructuredOutputs(regex="a+"), StructuredOutputsParams(regex="a+")),
    "repetition_detection": (
        pb.RepetitionDetection(max_pattern_size=4, min_pattern_size=2, min_count=3),
        RepetitionDetectionParams(max_pattern_size=4, min_pattern_size=2, min_count=3),
    ),
    "extra_args": ('{"a": [1]}', {"a": [1]}),
}


def names_of(message: Any) -> set[str]:
    return {field.name for field in message.DESCRIPTOR.fields}


def test_every_sampling_parameter_has_its_field_on_the_wire() -> None:
    wanted = {field.name for field in fields(SamplingParams)} - NOT_ON_THE_WIRE
    assert wanted == {name.removesuffix("_json") for name in names_of(pb.SamplingParams)}
    forms = {field.name for field in fields(StructuredOutputsParams)}
    assert forms - {"backend"} == names_of(pb.StructuredOutputs), "clients name no library"
    assert {field.name for field in fields(RepetitionDetectionParams)} == names_of(pb.RepetitionDetection)


def test_every_sampling_parameter_is_read() -> None:
    assert {*VALUES, *NESTED} == {name.removesuffix("_json") for name in names_of(pb.SamplingParams)}
    wire = {name: given for name, (given, _) in NESTED.items()}
    wire["extra_args_json"] = wire.pop("extra_args")
    read = read_request(pb.GenerateRequest(text="a", sampling_params=pb.SamplingParams(**VALUES, **wire)))
    assert read.sampling == VALUES | {name: value for name, (_, value) in NESTED.items()}
    assert SamplingParams(**read.sampling).min_p == VALUES["min_p"]


@pytest.mark.parametrize("form", [{"json": "{}"}, {"choice": ["a", "b"]}, {"json_object": True}])
def test_what_clients_of_baton_write_is_read_as_it_was(form: dict[str, Any]) -> None:
    others = {name: value for name, (_, value) in NESTED.items()}
    others["structured_outputs"] = StructuredOutputsParams(**form, disable_any_whitespace=True)
    params = SamplingParams(**VALUES, **others)
    request = pb.GenerateRequest(text="a", sampling_params=encode_params(params))
    assert SamplingParams(**read_request(request).sampling) == params


def test_what_is_left_out_is_left_to_the_models_defaults() -> None:
    assert read_request(pb.GenerateRequest(text="a")) == GenerationRequest(prompt="a", is_streamed=True)
    zeros = pb.SamplingParams(seed=0, temperature=0, logprobs=0, detokenize=False)
    given = {"seed": 0, "temperature": 0.0, "logprobs": 0, "detokenize": False}
    assert read_request(pb.GenerateRequest(text="a", sampling_params=zeros)).sampling == given


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (pb.StructuredOutputs(json='{"type": "object"}'), {"json": '{"type": "object"}'}),
        (pb.StructuredOutputs(regex="a|b"), {"regex": "a|b"}),
        (
            pb.StructuredOutputs(choice=pb.StructuredOutputs.Choices(choices=["a", "b"])),
            {"choice": ("a", "b")},
        ),
        (pb.StructuredOutputs(grammar='root ::= "a"'), {"grammar": 'root ::= "a"'}),
        (
            pb.StructuredOutputs(json_object=True, disable_any_whitespace=True),
            {"json_object": True, "disable_any_whitespace": True},
        ),
        (pb.StructuredOutputs(structural_tag="{}"), {"structural_tag": "{}"}),
    ],
)
def test_each_form_of_output_is_read(form: pb.StructuredOutputs, expected: dict[str, Any]) -> None:
    request = pb.GenerateRequest(text="a", sampling_params=pb.SamplingParams(structured_outputs=form))
    assert read_request(request).sampling == {"structured_outputs": StructuredOutputsParams(**expected)}


def test_every_field_of_a_request_is_read() -> None:
    request = pb.GenerateRequest(
        request_id="r",
        token_ids=pb.TokenIds(ids=[5, 6]),
        model="m",
        cache_salt="s",
        priority=-1,
        truncate_prompt_tokens=-1,
        add_special_tokens=False,
    )
    assert read_request(request) == GenerationRequest(
        is_streamed=True,
        request_id="r",
        prompt=(5, 6),
        prompt_field="token_ids",
        model="m",
        cache_salt="s",
        priority=-1,
        truncate_prompt_tokens=-1,
        add_special_tokens=False,
    )
    messages = ({"role": "user", "content": "hi"},)
    assert read_request(pb.GenerateRequest(chat=CHAT)).prompt == Conversation(messages=messages)
    closed = pb.TokenizeRequest(chat=CHAT, add_generation_prompt=False)
    assert read_tokenize_prompt(closed) == Conversation(messages=messages, add_generation_prompt=False)
    assert read_tokenize_prompt(pb.TokenizeRequest(text="a")) == "a"


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (pb.GenerateRequest(), "prompt is None; allowed: one of text, token_ids and chat"),
        (pb.GenerateRequest(text=""), "text is ''; allowed: at least one character"),
        (pb.GenerateRequest(token_ids=pb.TokenIds()), r"token_ids is \[\]; allowed: at least one token id"),
        (pb.GenerateRequest(chat=pb.Chat()), r"chat is \[\]; allowed: at least one message"),
        (
            pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="tool", content="a")])),
            "role is 'tool'; allowed: system, user, assistant",
        ),
        (
            pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="user")] * 4097)),
            "chat is '4097 messages'; allowed: at most 4096",
        ),
        (
            pb.GenerateRequest(text="a", sampling_params={"structured_outputs": {}}),
            "structured_outputs is None; allowed: one of its forms",
        ),
        (
            pb.GenerateRequest(text="a", sampling_params={"extra_args_json": "{"}),
            "extra_args_json is '{'; allowed: a JSON object",
        ),
        (
            pb.GenerateRequest(
                text="a", sampling_params={"repetition_detection": {"max_pattern_size": 2000}}
            ),
            r"repetition_detection\.max_pattern_size is 2000",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_request_out_of_form_is_refused_by_name(request_: pb.GenerateRequest, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        read_request(request_)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (pb.TokenizeRequest(), "prompt is None; allowed: one of text and chat"),
        (pb.TokenizeRequest(text=""), "text is ''; allowed: at least one character"),
        (pb.TokenizeRequest(chat=pb.Chat()), r"chat is \[\]; allowed: at least one message"),
        (
            pb.TokenizeRequest(text="a", add_generation_prompt=True),
            "add_generation_prompt is True; allowed: only beside chat",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_tokenized_is_refused_by_name(request_: pb.TokenizeRequest, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        read_tokenize_prompt(request_)


def test_a_delta_is_written_with_all_it_has() -> None:
    entry = PositionLogprobs(token_ids=(5, 7), logprobs=(-0.5, -0.25), ranks=(2, 1))
    delta = Delta(index=1, text="a", token_ids=(5,), logprobs=(entry,), finish_reason="stop", stop_reason="b")
    wire = pb.PositionLogprobs(token_ids=[5, 7], logprobs=[-0.5, -0.25], ranks=[2, 1])
    assert encode_event(delta).tokens == pb.TokensEvent(
        index=1, text="a", token_ids=[5], finish_reason="stop", stop_text="b", logprobs=[wire]
    )
    stopped = encode_event(
        Delta(index=0, text="", token_ids=(5,), finish_reason="stop", stop_reason=0)
    ).tokens
    assert (stopped.WhichOneof("stop_reason"), stopped.stop_token_id) == ("stop_token_id", 0)
    assert encode_event(Delta(index=0, text="", token_ids=(5,))).tokens.WhichOneof("stop_reason") is None
    prompt = encode_event(PromptDelta(start=1, logprobs=(entry,)))
    assert prompt.prompt_logprobs == pb.PromptLogprobsEvent(start=1, entries=[wire])


def test_the_end_is_written_with_all_it_has() -> None:
    times = {field.name: index + 1 for index, field in enumerate(fields(RequestTimings))}
    times |= {"prefill_worker": "p", "decode_worker": "d"}  # type: ignore[dict-item]
    finished = Finished(
        request_id="r",
        num_prompt_tokens=8,
        num_output_tokens=5,
        num_cached_tokens=4,
        seed=-3,
        timings=RequestTimings(**times),  # type: ignore[arg-type]
    )
    assert encode_event(finished).finished == pb.FinishedEvent(
        usage=pb.Usage(prompt_tokens=8, completion_tokens=5, cached_tokens=4),
        timings=pb.Timings(**times),  # type: ignore[arg-type]
        seed=-3,
        request_id="r",
    )
