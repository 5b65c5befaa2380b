"""Refusals of bodies name the field, its value and what is allowed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from baton_core.errors import InvalidRequestError
from baton_router.http.batches.schemas import CreateBatchRequest
from baton_router.http.bodies import BodyDecoder
from baton_router.http.chat.schemas import ChatRequest

HELLO = {"role": "user", "content": "Hello!"}
DECODER: BodyDecoder[Any] = BodyDecoder((ChatRequest,), is_strict=False)


def refused(decoder: BodyDecoder[Any] = DECODER, **fields: Any) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        decoder.decode(msgspec.json.encode({"messages": [HELLO], **fields}))
    assert str(caught.value).startswith(f"{caught.value.field} is ")
    return str(caught.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": []}, "messages is []; allowed: array of length >= 1"),
        ({"messages": 5}, "messages is 5; allowed: array"),
        (
            {"messages": [HELLO, {"role": "", "content": ""}]},
            "messages[1].role is ''; allowed: str of length",
        ),
        ({"max_tokens": 3.5}, "max_tokens is 3.5; allowed: int or null"),
        ({"stop": ["a", 1]}, "stop[1] is 1; allowed: str"),
        (
            {"reasoning_effort": "bogus"},
            "reasoning_effort is 'bogus'; allowed: high, low, max, medium, minimal,",
        ),
        ({"tool_choice": "any"}, "tool_choice is 'any'; allowed: auto, none, required, or an object"),
        ({"tools": [{"type": "x", "function": {"name": "f"}}]}, "tools[0].type is 'x'; allowed: function"),
        (
            {"response_format": {"type": "foo"}},
            "response_format.type is 'foo'; allowed: text, json_object, json_schema, structural_tag",
        ),
        (
            {"logit_bias": {"5": "much"}},
            "logit_bias[...] is of the wrong type or out of range: expected `float`",
        ),
        ({"user": "x" * 2**16, "n": "y"}, "n is of the wrong type or out of range: expected `int | null`"),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_what_is_allowed(fields: dict[str, Any], said: str) -> None:
    assert refused(**fields).startswith(said)


def test_the_type_of_the_body_says_what_is_allowed() -> None:
    batches: BodyDecoder[Any] = BodyDecoder((CreateBatchRequest,), is_strict=False)
    fields = {"input_file_id": "f", "endpoint": "/v1/completions", "completion_window": "1h"}
    assert refused(batches, **fields) == "completion_window is '1h'; allowed: 24h"
    with pytest.raises(InvalidRequestError, match=r"body is \[\]; allowed: object"):
        DECODER.decode(b"[]")


def test_one_byte_order_mark_before_a_body_is_skipped() -> None:
    body = msgspec.json.encode({"messages": [HELLO], "unknown": 1})
    decoded, removal = DECODER.decode(b"\xef\xbb\xbf" + body)
    assert (decoded.messages[0].content, removal.names) == ("Hello!", DECODER.decode(body)[1].names)
    with pytest.raises(InvalidRequestError, match="JSON in UTF-8"):
        DECODER.decode(2 * b"\xef\xbb\xbf" + body)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (r'"\ud800"', "a text has half a surrogate pair"),
        (r'"\ud83dx"', "a text has half a surrogate pair"),
        (r'"\ud83d\ude00', "Input data was truncated"),
        (r'"\\ud800', "Input data was truncated"),
    ],
)
def test_half_a_surrogate_pair_is_said_to_be_one(text: str, reason: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        DECODER.decode(text.encode())
    assert str(caught.value).endswith(f"allowed: JSON in UTF-8 ({reason})")
