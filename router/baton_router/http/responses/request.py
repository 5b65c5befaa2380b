"""Reads requests of OpenAI's Responses API as the chat that they ask for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Final

from baton_core.errors import InvalidRequestError
from baton_router.http.chat.schemas import (
    MAX_MESSAGES,
    AllowedTool,
    AllowedTools,
    CalledFunction,
    ChatMessage,
    ChatRequest,
    NamedFunction,
    NamedTool,
    ToolCallOfMessage,
)
from baton_router.http.kept import check_metadata
from baton_router.http.response_format import JsonSchema, JsonSchemaFormat
from baton_router.http.responses.schemas import (
    LOGPROBS,
    ContentPart,
    InputItem,
    ResponsesRequest,
    SchemaFormat,
    ToolChoice,
)
from baton_router.http.responses.tools import chat_tools, flat_name, offered_functions, skipped_tools
from baton_router.http.sampling_fields import refuse_fields

_REFUSED: Final[Mapping[str, str]] = {
    "prompt": "nothing: no prompts are stored here",
    "conversation": "nothing: previous_response_id continues a conversation",
    "max_tool_calls": "nothing: no tool is run here",
    "context_management": "nothing: the conversation is taken as it is",
    "kv_transfer_params": "nothing: the router places requests and moves their blocks itself",
}
RESPONSE_NAMES: Final[Mapping[str, str]] = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "tool_choice.function.name": "tool_choice.name",
    "tool_choice.allowed_tools.tools[].function.name": "tool_choice.tools[].name",
    "tools[].function.parameters": "tools[].parameters",
    "tools[].function.parameters.type": "tools[].parameters.type",
    "response_format.json_schema.schema": "text.format.schema",
    "reasoning_effort": "reasoning.effort",
}
"""Fields of chats, and their names in a request for responses."""
_SAME: Final = (
    *("model", "stream", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids"),
    *("ignore_eos", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
    *("structured_outputs", "chat_template_kwargs", "vllm_xargs", "parallel_tool_calls", "priority"),
    *("request_id", "cache_salt", "session_id", "prompt_cache_key"),
)
"""Fields that mean what those of chats mean."""
_TEXTS: Final = ("input_text", "output_text", "text")
_REASONING: Final = ("reasoning_text", "summary_text")
_CALLS: Final = ("function_call", "custom_tool_call", "local_shell_call")
_RESULTS: Final = tuple(f"{call}_output" for call in _CALLS)
_SKIPPED: Final = ("web_search_call",)
"""Kinds of items that have no text for the model."""


def as_chat(body: ResponsesRequest, items: Sequence[InputItem]) -> ChatRequest:
    """Return the chat that a request asks for; `items` are those of its whole conversation.

    Raises:
        InvalidRequestError: a field is wrong or cannot be had here; the message names it.
    """
    refuse_fields(body, _REFUSED)
    check_metadata(body.metadata or {})
    if not 1 <= len(items) <= MAX_MESSAGES:
        allowed = f"1 to {MAX_MESSAGES}, those of earlier responses included"
        raise InvalidRequestError("input", f"{len(items)} items", allowed)
    messages = [ChatMessage(role="system", content=body.instructions)] if body.instructions else []
    chat = ChatRequest(
        messages=_with_one_beginning(
            messages + _messages(items, num_earlier=len(items) - len(own_items(body)))
        ),
        tools=chat_tools(offered_functions(body.tools)),
        max_completion_tokens=body.max_output_tokens,
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        truncate_prompt_tokens=-1 if body.truncation == "auto" else None,
        **{name: getattr(body, name) for name in _SAME},
    )
    _choose_tools(chat, body.tool_choice)
    _set_logprobs(chat, body)
    if body.text is not None:
        chosen = body.text.format
        if isinstance(chosen, SchemaFormat):
            schema = JsonSchema(name=chosen.name, json_schema=chosen.schema)
            chat.response_format = JsonSchemaFormat(json_schema=schema)
        else:
            chat.response_format = chosen
    return chat


def own_items(body: ResponsesRequest) -> list[InputItem]:
    """Return the items of a request's own input."""
    if isinstance(body.input, str):
        return [InputItem(role="user", content=[ContentPart(type="input_text", text=body.input)])]
    return body.input


def skipped(body: ResponsesRequest) -> Iterator[tuple[str, str]]:
    """Yield the place and the type of each tool and item of a request that the model does not get."""
    yield from skipped_tools(body.tools)
    for index, item in enumerate(own_items(body)):
        if item.kind in _SKIPPED:
            yield f"input[{index}]", item.kind


def _with_one_beginning(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Join the messages of the system and the developer at the beginning: many templates take only one."""
    first = list(takewhile(lambda message: message.role in ("system", "developer"), messages))
    if len(first) < 2:
        return messages
    text = "\n\n".join(str(message.content) for message in first)
    return [ChatMessage(role=first[0].role, content=text), *messages[len(first) :]]


def _set_logprobs(chat: ChatRequest, body: ResponsesRequest) -> None:
    if LOGPROBS in (body.include or ()):
        chat.logprobs = True
        chat.top_logprobs = body.top_logprobs
    elif body.top_logprobs:
        raise InvalidRequestError(
            "top_logprobs", body.top_logprobs, f"nothing, unless include has {LOGPROBS}"
        )


def _choose_tools(chat: ChatRequest, choice: str | ToolChoice | None) -> None:
    match choice:
        case ToolChoice(type="function", name=name) if name:
            chat.tool_choice = NamedTool(function=NamedFunction(name=name))
        case ToolChoice(type="function"):
            raise InvalidRequestError("tool_choice.name", choice.name, "the name of a tool")
        case ToolChoice(type="allowed_tools", mode=mode, tools=tools) if mode and tools:
            allowed = [AllowedTool(function=NamedFunction(name=tool.name)) for tool in tools]
            chat.tool_choice = NamedTool(
                type="allowed_tools", allowed_tools=AllowedTools(mode=mode, tools=allowed)
            )
        case ToolChoice():
            names = "function, or allowed_tools with mode and tools: no tool is run here"
            raise InvalidRequestError("tool_choice.type", choice.type, names)
        case "none" | "required":
            chat.tool_choice = choice
        case "auto":
            chat.tool_choice = "auto" if chat.tools else None


def _messages(items: Sequence[InputItem], num_earlier: int) -> list[ChatMessage]:
    """Return items as chats have them: reasoning, text and calls that follow each other are one message."""
    messages: list[ChatMessage] = []
    is_open = False
    for index, item in enumerate(items):
        name = f"input[{index - num_earlier}]"
        if item.kind in _SKIPPED:
            continue
        is_reply = item.kind in ("reasoning", *_CALLS) or item.role == "assistant"
        if not is_reply:
            messages.append(_message(name, item))
        elif is_open and _can_go_on(messages[-1], item):
            _extend(name, messages[-1], item)
        else:
            messages.append(ChatMessage(role="assistant"))
            _extend(name, messages[-1], item)
        is_open = is_reply
    return messages


def _can_go_on(message: ChatMessage, item: InputItem) -> bool:
    """Return whether a reply may have an item after what it has: reasoning, then text, then calls."""
    return item.kind in _CALLS or (message.content is None and not message.tool_calls)


def _extend(name: str, message: ChatMessage, item: InputItem) -> None:
    """Add an item to an earlier reply."""
    match item.kind:
        case kind if kind in _CALLS:
            call_id = _given(name, "call_id", call_id_of(item))
            call = ToolCallOfMessage(function=_called(name, item), id=call_id)
            message.tool_calls = message.tool_calls or []
            message.tool_calls.append(call)
        case "reasoning":
            text = _text_of(f"{name}.content", item.content or item.summary or "", _REASONING)
            message.reasoning_content = "\n".join(filter(None, (message.reasoning_content, text))) or None
        case "message":
            message.content = _content_of(name, item)
        case _:
            raise _unknown(name, item)


def _called(name: str, item: InputItem) -> CalledFunction:
    """Return what an item calls, as a function: the model knows no other calls."""
    match item.kind:
        case "local_shell_call":
            if item.action is None:
                raise InvalidRequestError(f"{name}.action", None, "an object: the item's type needs it")
            return CalledFunction(name="local_shell", arguments=json.dumps(item.action))
        case "custom_tool_call":
            arguments = json.dumps({"input": _given(name, "input", item.input)})
        case _:
            arguments = _given(name, "arguments", item.arguments)
    return CalledFunction(
        name=flat_name(item.namespace, _given(name, "name", item.name)), arguments=arguments
    )


def call_id_of(item: InputItem) -> str | None:
    """Return the name of the call that an item is or answers; local shells have it as the item's id."""
    own_id = item.id if item.kind.startswith("local_shell") else None
    return own_id if item.call_id is None else item.call_id


def _message(name: str, item: InputItem) -> ChatMessage:
    match item.kind:
        case "message":
            role = _given(name, "role", item.role)
            return ChatMessage(role=role, content=_content_of(name, item))
        case kind if kind in _RESULTS:
            if item.output is None:
                raise InvalidRequestError(f"{name}.output", None, "text, or parts of it")
            output = _text_of(f"{name}.output", item.output, _TEXTS)
            call_id = _given(name, "call_id", call_id_of(item))
            return ChatMessage(role="tool", tool_call_id=call_id, content=output)
        case _:
            raise _unknown(name, item)


def _unknown(name: str, item: InputItem) -> InvalidRequestError:
    if item.kind == "compaction":
        allowed = "the items that it stands for: only the server that made it can read it"
    else:
        kinds = ("message", "reasoning", *_CALLS, *_RESULTS, "item_reference", *_SKIPPED)
        allowed = ", ".join(kinds)
    return InvalidRequestError(f"{name}.type", item.kind, allowed)


def _given(name: str, field: str, value: str | None) -> str:
    if value is None:
        raise InvalidRequestError(f"{name}.{field}", None, "a text: the item's type needs it")
    return value


def _content_of(name: str, item: InputItem) -> str:
    if item.content is None:
        raise InvalidRequestError(f"{name}.content", None, "text, or parts of it")
    return _text_of(f"{name}.content", item.content, (*_TEXTS, "refusal"))


def _text_of(name: str, content: str | Sequence[ContentPart], kinds: Sequence[str]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_text_of_part(f"{name}[{index}]", part, kinds) for index, part in enumerate(content))


def _text_of_part(name: str, part: ContentPart, kinds: Sequence[str]) -> str:
    if part.type not in kinds:
        allowed = f"{', '.join(kinds)}: this router serves models of text"
        raise InvalidRequestError(f"{name}.type", part.type, allowed)
    text = part.refusal if part.type == "refusal" else part.text
    if text is None:
        raise InvalidRequestError(f"{name}.text", None, "a text")
    return text
