from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from baton_core.errors import ErrorCode, InvalidRequestError, RequestError
from baton_core.sampling_params import SamplingParams
from baton_proto.v1.baton_pb2 import Chat, ChatMessage, GenerateRequest, TokenIds
from baton_proto.v1.baton_pb2 import SamplingParams as Params
from baton_router import chat_template
from baton_router.model_folder import read_model_folder
from baton_router.validation import RequestValidator, check_prompt
from tests.unit.router.folders import write_model_folder


def make_validator(folder: Path, **files: Any) -> RequestValidator:
    return RequestValidator(
        ("tiny", "small"),
        read_model_folder(write_model_folder(folder, **files)),
        choose_seed=lambda: 42,
        choose_request_id=lambda: "chosen",
    )


@pytest.fixture
def validator(tmp_path: Path) -> RequestValidator:
    return make_validator(tmp_path)


def test_what_the_client_leaves_out_takes_batons_defaults(validator: RequestValidator) -> None:
    valid = validator.validate(GenerateRequest(text="hello"))
    assert valid.prompt == "hello"
    assert valid.params == SamplingParams(seed=42)
    assert (valid.request_id, valid.cache_salt) == ("chosen", "")


def test_the_models_defaults_come_before_batons_and_the_clients_before_both(tmp_path: Path) -> None:
    validator = make_validator(
        tmp_path, generation_config={"temperature": 0.5, "top_k": 20, "max_new_tokens": 7}
    )
    given = Params(temperature=0.0, n=2)
    params = validator.validate(GenerateRequest(text="a", sampling_params=given)).params
    assert params == SamplingParams(temperature=0.0, top_k=20, max_tokens=7, n=2, seed=42)


def test_every_sampling_field_is_taken(validator: RequestValidator) -> None:
    values: dict[str, Any] = {
        "n": 3,
        "temperature": 0.25,
        "top_p": 0.5,
        "top_k": -1,
        "min_p": 0.125,
        "seed": -7,
        "stop": ["a", "b"],
        "stop_token_ids": [5, 6],
        "ignore_eos": True,
        "max_tokens": 9,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
    }
    assert set(values) == {field.name for field in Params.DESCRIPTOR.fields}
    request = GenerateRequest(text="a", sampling_params=Params(**values))
    values |= {"stop": ("a", "b"), "stop_token_ids": (5, 6)}
    assert validator.validate(request).params == SamplingParams(**values)


def test_a_seed_of_zero_is_a_seed(validator: RequestValidator) -> None:
    request = GenerateRequest(text="a", sampling_params=Params(seed=0))
    assert validator.validate(request).params.seed == 0


def test_token_ids_chats_names_and_salts_are_taken(validator: RequestValidator) -> None:
    request = GenerateRequest(
        token_ids=TokenIds(ids=[0, 399]), model="tiny", request_id="r" * 128, cache_salt="s" * 128
    )
    valid = validator.validate(request)
    assert (valid.prompt, valid.request_id, valid.cache_salt) == ((0, 399), "r" * 128, "s" * 128)
    chat = Chat(messages=[ChatMessage(role=role, content="") for role in ("system", "user", "assistant")])
    assert validator.validate(GenerateRequest(chat=chat)).prompt == chat_template.Conversation(
        messages=tuple(
            chat_template.ChatMessage(role=role, content="") for role in ("system", "user", "assistant")
        )
    )


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (GenerateRequest(), "prompt is None; allowed: one of text, token_ids and chat"),
        (GenerateRequest(text=""), "text is ''; allowed: at least one character"),
        (GenerateRequest(token_ids=TokenIds()), r"token_ids is \[\]; allowed: at least one token id"),
        (GenerateRequest(token_ids=TokenIds(ids=[1, 400])), "token_ids is 400; allowed: .* 0 to 399"),
        (GenerateRequest(chat=Chat()), r"chat is \[\]; allowed: at least one message"),
        (
            GenerateRequest(chat=Chat(messages=[ChatMessage(role="tool", content="a")])),
            "role is 'tool'; allowed: system, user, assistant",
        ),
        (GenerateRequest(text="a", request_id="r" * 129), "request_id is 'r.*; allowed: at most 128"),
        (GenerateRequest(text="a", request_id="a\nb"), r"request_id is 'a\\nb'; allowed: .* printable"),
        (GenerateRequest(text="a", cache_salt="s" * 129), "cache_salt is 's.*; allowed: at most 128"),
    ],
)
def test_a_bad_request_is_refused_by_field_value_and_what_is_allowed(
    validator: RequestValidator, request_: GenerateRequest, message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        validator.validate(request_)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", 65),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", 1.5),
        ("max_tokens", 0),
        ("max_tokens", 2**32 - 1),
        ("stop", [""]),
        ("stop", ["a"] * 33),
        ("stop", ["a" * 1025]),
        ("stop_token_ids", [400]),
        ("stop_token_ids", [2**32 - 1]),
        ("stop_token_ids", [1] * 1025),
    ],
)
def test_a_bad_sampling_parameter_is_refused_by_name(
    validator: RequestValidator, field: str, value: Any
) -> None:
    request = GenerateRequest(text="a", sampling_params=Params(**{field: value}))
    with pytest.raises(InvalidRequestError) as caught:
        validator.validate(request)
    assert caught.value.field == field


def test_another_model_is_not_found(validator: RequestValidator) -> None:
    with pytest.raises(RequestError, match="model is 'other'; allowed: 'tiny', 'small'") as caught:
        validator.validate(GenerateRequest(text="a", model="other"))
    assert caught.value.code is ErrorCode.NOT_FOUND


@pytest.mark.parametrize("num_tokens", [1, 127])
def test_a_prompt_that_leaves_room_for_one_token_passes(num_tokens: int) -> None:
    check_prompt([399] * num_tokens, max_model_len=128, vocab_size=400)


@pytest.mark.parametrize(
    ("token_ids", "message"),
    [
        ([], "prompt is '0 tokens'; allowed: 1 to 127 tokens"),
        ([0] * 128, "prompt is '128 tokens'; allowed: 1 to 127 tokens"),
        ([0, 400], "prompt is 400; allowed: token ids from 0 to 399"),
        ([0, -1], "prompt is -1; allowed: token ids from 0 to 399"),
    ],
)
def test_a_prompt_that_cannot_be_served_is_refused(token_ids: list[int], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        check_prompt(token_ids, max_model_len=128, vocab_size=400)
