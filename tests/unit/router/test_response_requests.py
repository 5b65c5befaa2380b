"""Requests of the Responses API as the chats that they become."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from baton_core.errors import InvalidRequestError
from baton_core.requests.sampling_params import SamplingParams
from baton_router.http.chat.request import count_tokens, read_chat
from baton_router.http.chat.schemas import ChatRequest
from baton_router.http.responses.conversations import read_request
from baton_router.http.responses.request import as_chat, own_items
from baton_router.http.responses.schemas import ResponsesRequest
from baton_router.output_parsing.output_parser import Tool
from baton_router.process.http_settings import HttpSettings


def chat_of(*items: dict[str, Any], **fields: Any) -> dict[str, Any]:
    body = msgspec.convert({"input": items, **fields}, ResponsesRequest)
    read: dict[str, Any] = msgspec.to_builtins(as_chat(body, own_items(body)))
    return read


def messages_of(*items: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = chat_of(*items, **fields)["messages"]
    return messages


def text(content: str, kind: str) -> list[dict[str, Any]]:
    return [{"type": kind, "text": content}]


def test_reasoning_text_and_calls_that_follow_each_other_are_one_message() -> None:
    first, second = (
        {"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"} for name in ("a", "b")
    )
    calls = [{"function": {"name": "f", "arguments": "{}"}, "id": name} for name in ("a", "b")]
    read = messages_of(
        {"role": "user", "content": text("Well?", "input_text")},
        {"type": "reasoning", "summary": [], "content": text("Hm.", "reasoning_text")},
        {"type": "message", "role": "assistant", "content": text("I look.", "output_text")},
        first,
        second,
        {"type": "function_call_output", "call_id": "a", "output": "1"},
        {"type": "function_call_output", "call_id": "b", "output": text("2", "input_text")},
        {"type": "reasoning", "summary": text("So.", "summary_text")},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "assistant", "content": "Yes."},
        {"type": None, "role": "developer", "content": "Go on."},
        instructions="Be brief.",
    )
    assert read == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Well?"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": calls},
        {"role": "tool", "content": "1", "tool_call_id": "a"},
        {"role": "tool", "content": "2", "tool_call_id": "b"},
        {"role": "assistant", "content": "No.", "reasoning_content": "So."},
        {"role": "assistant", "content": "Yes."},
        {"role": "developer", "content": "Go on."},
    ]


def test_the_system_and_the_developer_are_one_message_at_the_beginning() -> None:
    developer = [{"role": "developer", "content": text(each, "input_text")} for each in ("A", "B")]
    user, later = {"role": "user", "content": "x"}, {"role": "developer", "content": "C"}
    assert messages_of(*developer, user, later, instructions="I") == [
        {"role": "system", "content": "I\n\nA\n\nB"},
        user,
        later,
    ]
    assert messages_of(*developer, user)[0] == {"role": "developer", "content": "A\n\nB"}
    assert messages_of(developer[0], user)[0] == {"role": "developer", "content": "A"}


def test_the_model_gets_functions_and_those_of_namespaces() -> None:
    function = {"type": "function", "name": "f"}
    space = {"type": "namespace", "name": "n", "tools": [function, {"type": "custom", "name": "g"}]}
    chat = chat_of({"role": "user", "content": "x"}, tools=[{"type": "web_search"}, space, function])
    assert [tool["function"]["name"] for tool in chat["tools"]] == ["n__f", "f"]
    assert chat_of({"role": "user", "content": "x"}, tools=[{"type": "web_search"}])["tools"] is None


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_are_those_that_the_model_is_shown(mode: str) -> None:
    settings = HttpSettings(enable_auto_tool_choice=True, tool_call_parser="hermes")
    functions = [{"type": "function", "name": name} for name in "abc"]
    space = {"type": "namespace", "name": "n", "tools": functions}
    allowed = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "n__b"}]}
    body = msgspec.convert({"input": "x", "tools": [space], "tool_choice": allowed}, ResponsesRequest)
    plan = read_chat(as_chat(body, own_items(body)), settings, SamplingParams())
    assert [tool["function"]["name"] for tool in plan.conversation.tools] == ["n__b"]
    assert (plan.tool_use.choice, plan.tool_use.tools) == (mode, (Tool(name="n__b"),))
    chat = chat_of({"role": "user", "content": "x"}, tools=functions, tool_choice=allowed)
    with pytest.raises(InvalidRequestError, match=r"tools\[0\].function.name is 'n__b'; allowed: a, b, c"):
        read_chat(msgspec.convert(chat, ChatRequest), settings, SamplingParams())


async def test_tokens_are_counted_with_the_allowed_tools_alone() -> None:
    counted: list[str] = []

    async def read(function: Any, *args: Any) -> Any:
        return function(*args)

    async def tokenize(conversation: Any, **_: Any) -> tuple[int, ...]:
        counted.extend(tool["function"]["name"] for tool in conversation.tools)
        return (1, 2)

    state = SimpleNamespace(settings=HttpSettings(), service=SimpleNamespace(tokenize=tokenize))
    call: Any = SimpleNamespace(state=state, read=read, tenant="")
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "b"}]}
    functions = [{"type": "function", "name": name} for name in "abc"]
    chat = chat_of({"role": "user", "content": "x"}, tools=functions, tool_choice=allowed)
    assert await count_tokens(call, msgspec.convert(chat, ChatRequest)) == 2
    assert counted == ["b"]


def test_a_name_that_stands_for_two_functions_is_refused() -> None:
    function, flat = ({"type": "function", "name": name} for name in ("f", "n__f"))
    space = {"type": "namespace", "name": "n", "tools": [function]}
    with pytest.raises(InvalidRequestError, match=r"tools\[1\].tools\[0\].name is 'f'; .*'n__f' is another"):
        chat_of({"role": "user", "content": "x"}, tools=[flat, space])
    assert len(chat_of({"role": "user", "content": "x"}, tools=[flat, flat, function])["tools"]) == 3


def test_calls_of_namespaces_and_custom_tools_are_those_of_functions() -> None:
    read = messages_of(
        {"role": "user", "content": "x"},
        {"type": "web_search_call", "id": "w", "status": "completed"},
        {"type": "function_call", "call_id": "a", "namespace": "n", "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "b", "name": "patch", "input": '"+'},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
        {"type": "custom_tool_call_output", "call_id": "b", "output": "2"},
    )
    assert read[1:] == [
        {
            "role": "assistant",
            "tool_calls": [
                {"function": {"name": "n__f", "arguments": "{}"}, "id": "a"},
                {"function": {"name": "patch", "arguments": '{"input": "\\"+"}'}, "id": "b"},
            ],
        },
        {"role": "tool", "content": "1", "tool_call_id": "a"},
        {"role": "tool", "content": "2", "tool_call_id": "b"},
    ]


def test_calls_of_a_local_shell_are_those_of_a_function_and_their_results_have_ids() -> None:
    action = {"type": "exec", "command": ["ls"], "env": {}}
    shell = {"type": "local_shell_call", "id": "lsh_1", "call_id": "a", "status": "completed"}
    read = messages_of(
        {"role": "user", "content": "x"},
        {**shell, "action": action},
        {"type": "local_shell_call_output", "id": "a", "output": '{"stdout": "f"}'},
    )
    called = {"name": "local_shell", "arguments": '{"type": "exec", "command": ["ls"], "env": {}}'}
    assert read[1:] == [
        {"role": "assistant", "tool_calls": [{"function": called, "id": "a"}]},
        {"role": "tool", "content": '{"stdout": "f"}', "tool_call_id": "a"},
    ]
    with pytest.raises(InvalidRequestError, match=r"input\[0\].action is None; allowed: an object"):
        messages_of(shell)


def test_the_name_of_a_call_may_be_empty() -> None:
    call = {"type": "function_call", "call_id": "", "name": "f", "arguments": "{}"}
    read = messages_of(call, {"type": "function_call_output", "call_id": "", "output": "1"})
    assert (read[0]["tool_calls"][0]["id"], read[1]["tool_call_id"]) == ("", "")


def test_stored_results_of_a_local_shell_keep_the_name_of_their_call() -> None:
    items = [
        {"role": "user", "content": "x"},
        {"type": "local_shell_call", "id": "lsh_1", "action": {"command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "lsh_1", "output": "f"},
    ]
    _, stored = read_request(msgspec.convert({"input": items}, ResponsesRequest), [], is_stored=True)
    listed = [msgspec.json.decode(item) for item in stored]
    assert listed[1]["id"] == "lsh_1" != listed[2]["id"]
    again = messages_of(*listed)
    assert again[2]["tool_call_id"] == again[1]["tool_calls"][0]["id"] == "lsh_1"


@pytest.mark.parametrize(
    "metadata", [{str(number): "x" for number in range(17)}, {"x" * 65: "x"}, {"x": "x" * 513}]
)
def test_metadata_is_bounded_as_it_is_kept(metadata: dict[str, str]) -> None:
    allowed = "allowed: at most 16 texts of 512 characters, with names of 64"
    with pytest.raises(InvalidRequestError, match=allowed):
        messages_of({"role": "user", "content": "x"}, metadata=metadata)


@pytest.mark.parametrize("name", ["user", "safety_identifier"])
def test_labels_are_bounded_as_they_are_kept(name: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=rf"length <= 512 - at `\$.{name}`"):
        messages_of({"role": "user", "content": "x"}, **{name: "x" * 513})
