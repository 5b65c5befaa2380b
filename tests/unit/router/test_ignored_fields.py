"""Bodies with unknown fields: which are taken out, how they are named, and what that may take."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from baton_core.errors import InvalidRequestError
from baton_router.http.bodies import BodyDecoder
from baton_router.http.chat.schemas import ChatRequest
from baton_router.http.completions.schemas import CompletionRequest
from baton_router.http.ignored_fields import MAX_STEPS, IgnoredFields, Removal
from baton_router.metrics.http_metrics import FAMILIES, HttpMetrics
from baton_service.exposition import Exposition

CHAT: BodyDecoder[Any] = BodyDecoder((ChatRequest,), is_strict=False)
HELLO = {"role": "user", "content": "Hi"}


def decode(body: dict[str, Any], decoder: BodyDecoder[Any] = CHAT) -> tuple[Any, Removal]:
    return decoder.decode(json.dumps(body).encode())


def test_unknown_fields_of_all_levels_are_named_without_numbers_and_the_rest_is_read() -> None:
    call = {"function": {"name": "f", "arguments": "{}", "x": 1}, "index": 0}
    body, removal = decode(
        {
            "messages": [HELLO | {"foo": 1}, {"role": "assistant", "tool_calls": [call]}, HELLO | {"foo": 2}],
            "tools": [
                {"type": "function", "function": {"name": "f", "parameters": {"any": {"thing": 1}}, "y": 2}}
            ],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"z": 1}, "w": 1},
            },
            "chat_template_kwargs": {"kept": True},
            "stream_options": {"include_obfuscation": True},
            "num_ctx": 4096,
            "max_tokens": 5,
        }
    )
    assert set(removal.names) == {
        "messages[].foo",
        "messages[].tool_calls[].function.x",
        "tools[].function.y",
        "response_format.json_schema.w",
        "stream_options.include_obfuscation",
        "num_ctx",
    }
    assert removal.places == {name.rpartition(".")[0] for name in removal.names}
    assert (body.max_tokens, body.chat_template_kwargs) == (5, {"kept": True})
    assert body.tools[0].function.parameters == {"any": {"thing": 1}}
    assert body.response_format.json_schema.json_schema == {"z": 1}
    assert [message.role for message in body.messages] == ["user", "assistant", "user"]


def test_a_body_of_known_fields_loses_nothing() -> None:
    _, removal = decode({"messages": [HELLO], "tool_choice": {"type": "function", "function": {"name": "f"}}})
    assert (removal.names, removal.places) == ({}, set())


def test_names_that_no_header_could_carry_are_question_marks_and_few_are_kept() -> None:
    strange = {"a\r\nset-cookie: x": 1, "ä": 1, "": 1, "x" * 65: 1}
    _, removal = decode({"messages": [HELLO], **strange})
    assert list(removal.names) == ["?"]
    _, removal = decode({"messages": [HELLO], **{f"field{number}": 1 for number in range(100)}})
    assert len(removal.names) == 16


def test_wrong_values_are_refused_beside_unknown_fields_too() -> None:
    with pytest.raises(InvalidRequestError, match="temperature is 'warm'; allowed: float or null"):
        decode({"messages": [HELLO], "foo": 1, "temperature": "warm"})
    with pytest.raises(InvalidRequestError, match="messages is missing"):
        decode({"foo": 1})


def test_a_strict_route_refuses_unknown_fields_by_name() -> None:
    strict: BodyDecoder[Any] = BodyDecoder((ChatRequest,), is_strict=True)
    with pytest.raises(InvalidRequestError, match=r"messages\[0\].foo is unknown; allowed: the fields in"):
        decode({"messages": [HELLO | {"foo": 1}]}, strict)


def test_bodies_that_would_take_long_to_search_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="foo is unknown"):
        decode({"messages": [HELLO] * MAX_STEPS, "foo": 1})
    with pytest.raises(InvalidRequestError, match="field0 is unknown"):
        decode({"messages": [HELLO], **{f"field{number}": 1 for number in range(MAX_STEPS)}})
    many = {"messages": [HELLO], "documents": [{"a": "b"}] * 70_000}
    assert decode(many)[1].names == {}
    with pytest.raises(InvalidRequestError, match="140007 strings'; allowed: at most 131072 beside unknown"):
        decode({**many, "foo": 1})


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"max_tokens": "16"}, 16),
        ({"max_tokens": 16.0}, 16),
        ({"temperature": "0.5"}, 0.5),
        ({"stream": "true"}, True),
        ({"stream": 0}, False),
        ({"stop_token_ids": ["1", 2.0]}, [1, 2]),
        ({"logit_bias": {"5": "1.5"}}, {"5": 1.5}),
        ({"stop": "1"}, "1"),
    ],
)
@pytest.mark.parametrize("further", [{}, {"unknown": 1}])
def test_numbers_and_truth_values_are_read_as_lenient_clients_write_them(
    given: dict[str, Any], read: object, further: dict[str, Any]
) -> None:
    body, _ = decode({"messages": [HELLO], **given, **further})
    (name,) = given
    assert getattr(body, name) == read
    assert type(getattr(body, name)) is type(read)


def test_the_kind_of_a_body_is_told_by_its_required_fields() -> None:
    decoder: BodyDecoder[Any] = BodyDecoder((ChatRequest, CompletionRequest), is_strict=False)
    assert isinstance(decode({"prompt": "x", "foo": 1}, decoder)[0], CompletionRequest)
    assert isinstance(decode({"messages": [HELLO]}, decoder)[0], ChatRequest)
    with pytest.raises(InvalidRequestError, match="messages is missing"):
        decode({"model": "m"}, decoder)


def test_each_name_is_logged_once_and_each_known_object_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    metrics = HttpMetrics()
    ignored = IgnoredFields(metrics)
    with caplog.at_level(logging.WARNING):
        for number in range(2):
            ignored.note(decode({"messages": [HELLO | {"foo": number}], "bar": 1})[1])
    (line,) = caplog.messages
    assert "messages[].foo" in line
    assert "bar" in line
    page = Exposition(FAMILIES)
    metrics.report(page)
    for place in ("body", "messages[]"):
        assert f'baton_http_ignored_fields_total{{object="{place}"}} 2.0' in page.text().decode()
