"""Chat requests, read: what the router is to generate."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from baton_core.errors import InvalidRequestError
from baton_core.requests.sampling_params import SamplingParams
from baton_router.http.chat.request import ChatPlan, chat_names, read_chat, read_conversation
from baton_router.http.chat.schemas import ChatRequest
from baton_router.http.chat.tool_choice import Choice
from baton_router.http.response_format import ResponseFormat, StructuredOutputs, read_structured_outputs
from baton_router.process.http_settings import HttpSettings
from baton_router.text.chat_template import ChatTemplate

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hello!"}]
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
AUTO = HttpSettings(enable_auto_tool_choice=True, tool_call_parser="hermes")


def body(**fields: Any) -> ChatRequest:
    return msgspec.convert({"messages": HELLO, **fields}, ChatRequest)


PLAIN = HttpSettings()
DEFAULTS = SamplingParams()


def plan(settings: HttpSettings = PLAIN, *, defaults: SamplingParams = DEFAULTS, **fields: Any) -> ChatPlan:
    return read_chat(body(**fields), settings, defaults)


def refused_field(**fields: Any) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        plan(**fields)
    return caught.value.field


def test_an_answer_may_be_as_long_as_the_context_unless_someone_says_otherwise() -> None:
    assert plan().sampling["max_tokens"] is None
    assert plan(max_tokens=5).sampling["max_tokens"] == 5
    assert plan(max_tokens=5, max_completion_tokens=7).sampling["max_tokens"] == 7
    assert plan(defaults=SamplingParams(max_tokens=99)).sampling["max_tokens"] == 99


def test_only_given_parameters_are_passed_on() -> None:
    assert plan(temperature=0.5, stop="x", seed=None).sampling == {
        "temperature": 0.5,
        "stop": "x",
        "max_tokens": None,
    }


def test_log_probabilities_are_asked_for_by_number() -> None:
    assert plan(logprobs=True).sampling["logprobs"] == 0
    assert plan(logprobs=True, top_logprobs=5).sampling["logprobs"] == 5
    assert "logprobs" not in plan(logprobs=False, top_logprobs=0).sampling
    assert plan(logprobs=True, top_logprobs=2, echo=True).sampling["prompt_logprobs"] == 2
    assert plan(logprobs=True, prompt_logprobs=0, top_logprobs=2, echo=True).sampling["prompt_logprobs"] == 0
    assert refused_field(logprob_token_ids=[3]) == "logprob_token_ids"


def test_parsers_get_to_see_special_tokens() -> None:
    assert plan(AUTO, tools=[TOOL]).sampling["skip_special_tokens"] is False
    assert plan(AUTO, tools=[TOOL], skip_special_tokens=True).sampling["skip_special_tokens"] is True
    assert plan(HttpSettings(reasoning_parser="qwen3")).sampling["skip_special_tokens"] is False
    assert "skip_special_tokens" not in plan(AUTO, tools=[TOOL], tool_choice="none").sampling


def test_the_model_decides_where_tools_are_offered_and_nothing_else_is_said() -> None:
    assert plan(AUTO, tools=[TOOL]).tool_use.choice is Choice.AUTO
    assert plan(AUTO, tools=[TOOL], tool_choice=None).tool_use.choice is Choice.AUTO
    assert plan(AUTO).tool_use.choice is Choice.NONE
    assert plan(AUTO, tools=[]).tool_use.choice is Choice.NONE
    assert plan(AUTO, tools=[], tool_choice="auto").tool_use.choice is Choice.NONE
    assert "structured_outputs" not in plan(AUTO, tools=[TOOL], tool_choice="auto").sampling


def test_a_demanded_call_decides_the_form_and_comes_before_that_of_the_content() -> None:
    asked = {"tools": [TOOL], "tool_choice": "required", "response_format": {"type": "json_object"}}
    form = plan(**asked).sampling["structured_outputs"]
    assert form is not None
    assert form.json is not None
    assert json.loads(form.json)["type"] == "array"
    other = {"tools": [TOOL], "tool_choice": "required", "structured_outputs": {"regex": "a"}}
    assert refused_field(**other) == "structured_outputs"


def test_both_fields_together_have_one_form() -> None:
    def form(outputs: dict[str, Any] | None, response: dict[str, Any] | None, **guided: Any) -> Any:
        return read_structured_outputs(
            msgspec.convert(outputs, StructuredOutputs | None),
            msgspec.convert(response, ResponseFormat | None),
            guided,
        )

    assert form(None, None) is None
    assert form(None, {"type": "text"}) is None
    assert form(None, {"type": "json_object"}).json_object
    schema = {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "string"}, "strict": True},
    }
    assert json.loads(form({"disable_any_whitespace": True}, schema).json) == {"type": "string"}
    tag = {"type": "structural_tag", "format": {"type": "any_text"}}
    assert json.loads(form(None, tag).structural_tag) == tag
    assert form({"grammar": "root ::= 'a'"}, None, grammar="root ::= 'a'").grammar
    assert form(None, schema, json={"type": "string"}).json
    for outputs, response, guided in (
        ({"json": {"const": 1}}, None, {"const": True}),
        ({"json": {"type": "number"}}, schema, None),
        (None, schema, {"type": "number"}),
    ):
        with pytest.raises(InvalidRequestError, match=r"structured_outputs.json is 'given twice'"):
            form(outputs, response, json=guided)
    with pytest.raises(InvalidRequestError, match="structured_outputs is 'json and regex'"):
        form({"regex": "a"}, schema)
    for empty, said in (
        (StructuredOutputs(choice=[]), r"structured_outputs.choice is \[\]; allowed: at least one string"),
        (StructuredOutputs(json_object=False), "structured_outputs.json_object is False; allowed: true"),
    ):
        with pytest.raises(InvalidRequestError, match=said):
            read_structured_outputs(empty)
    with pytest.raises(InvalidRequestError, match="exactly one of"):
        form({}, None)


def test_errors_have_the_names_that_the_client_used() -> None:
    for given, raised, shown in (
        ({}, "prompt", "messages"),
        ({}, "logprobs", "top_logprobs"),
        ({"max_completion_tokens": 1}, "max_tokens", "max_completion_tokens"),
        ({"max_tokens": 1}, "max_tokens", "max_tokens"),
        (
            {"response_format": {"type": "structural_tag", "structures": [], "triggers": []}},
            "structured_outputs.structural_tag",
            "response_format",
        ),
    ):
        with pytest.raises(InvalidRequestError) as caught, chat_names(body(**given)):
            raise InvalidRequestError(raised, 3, "less")
        assert caught.value.field == shown
        assert str(caught.value) == f"{shown} is 3; allowed: less"


def test_messages_go_to_the_template_as_transformers_knows_them() -> None:
    call = {"id": "c1", "index": 0, "type": None, "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "Be kind.", "name": None},
        {"role": "assistant", "tool_calls": [call], "refusal": None, "annotations": [], "reasoning": "Hm."},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": "y", "tool_calls": []},
    ]
    conversation = read_conversation(body(messages=messages, tools=[TOOL]))
    assert conversation.messages == (
        {"role": "developer", "content": "Be kind."},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "id": "c1", "function": {"name": "f", "arguments": "{}"}}],
            "reasoning": "Hm.",
        },
        {"role": "tool", "content": [{"type": "text", "text": "x"}], "tool_call_id": "c1"},
        {"role": "assistant", "content": "y"},
    )
    assert conversation.tools == (TOOL,)


def test_effort_reaches_the_template_beside_the_clients_own_arguments() -> None:
    assert read_conversation(body()).template_arguments == {}
    given = read_conversation(body(reasoning_effort="none", chat_template_kwargs={"a": 1})).template_arguments
    assert given == {"enable_thinking": False, "a": 1, "reasoning_effort": "none"}
    kept = {"enable_thinking": True}
    read = read_conversation(body(reasoning_effort="none", chat_template_kwargs=kept)).template_arguments
    assert read == {"enable_thinking": True, "reasoning_effort": "none"}


def test_a_final_message_is_continued_without_an_opened_answer() -> None:
    assert not read_conversation(body(continue_final_message=True)).add_generation_prompt
    assert read_conversation(body()).add_generation_prompt


@pytest.mark.parametrize(
    ("source", "role"),
    [
        ("{{ messages[0].role }}", "system"),
        ("{% if messages[0].role == 'developer' %}developer{% endif %}", "developer"),
    ],
)
def test_developers_are_the_system_to_templates_that_do_not_know_them(source: str, role: str) -> None:
    messages = [{"role": "developer", "content": "Be kind."}]
    assert ChatTemplate(source).render(read_conversation(body(messages=messages))) == role
