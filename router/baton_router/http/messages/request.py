"""Reads requests of Anthropic's Messages API as the chat that they ask for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from baton_core.errors import InvalidRequestError
from baton_router.http.chat.schemas import (
    CalledFunction,
    ChatMessage,
    ChatRequest,
    ChatTool,
    FunctionDefinition,
    NamedFunction,
    NamedTool,
    ToolCallOfMessage,
)
from baton_router.http.messages.schemas import (
    AnyBlock,
    CountRequest,
    DocumentBlock,
    ImageBlock,
    InputMessage,
    InputTool,
    InputToolChoice,
    MessagesRequest,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from baton_router.http.response_format import JsonSchema, JsonSchemaFormat
from baton_router.http.sampling_fields import refuse_fields

LEAST_BUDGET: Final = 1024
"""Source: Anthropic's API reference, `thinking.budget_tokens`."""
_REFUSED: Final = {
    "container": "nothing: no code is run here",
    "mcp_servers": "nothing: no server is called here",
    "compaction": "nothing: conversations are not summarized here",
    "thread": "nothing: no conversation is kept here, send it whole",
    "kv_transfer_params": "nothing: the router places requests and moves their blocks itself",
}
_BILLING: Final = "x-anthropic-billing-header"
"""Beginning of a part of Claude Code's system prompt; it differs between sessions, and prefixes with it."""
_KEPT_THINKING: Final = "clear_thinking_20251015"
"""Type of the edits of `context_management` that clear earlier thinking; they may keep all of it."""
MESSAGE_NAMES: Final = {
    "stop": "stop_sequences",
    "max_completion_tokens": "max_tokens",
    "tool_choice.function.name": "tool_choice.name",
    "tools[].function.parameters": "tools[].input_schema",
    "tools[].function.parameters.type": "tools[].input_schema.type",
    "response_format.json_schema.schema": "output_config.format.schema",
    "reasoning_effort": "output_config.effort",
    "thinking_token_budget": "thinking.budget_tokens",
}
"""Fields of chats, and their names in a request for messages."""


def as_chat(body: CountRequest, *, has_reasoning: bool) -> ChatRequest:
    """Return the chat that a request asks for; `has_reasoning`: a reasoning parser is configured.

    Raises:
        InvalidRequestError: a field is wrong or cannot be had here; the message names it.
    """
    refuse_fields(body, _REFUSED)
    messages = _conversation(body)
    continues = bool(body.messages) and body.messages[-1].role == "assistant"
    chat = ChatRequest(
        messages=messages,
        model=body.model,
        tools=[_chat_tool(f"tools[{index}]", tool) for index, tool in enumerate(body.tools or ())] or None,
        continue_final_message=True if continues else None,
        chat_template_kwargs=body.chat_template_kwargs,
    )
    _choose_tools(chat, body.tool_choice)
    _set_thinking(chat, body, has_reasoning=has_reasoning)
    if body.output_config is not None and body.output_config.effort is not None:
        chat.reasoning_effort = body.output_config.effort
    if isinstance(body, MessagesRequest):
        _set_sampling(chat, body)
    return chat


def unmade_edits(body: CountRequest) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the edits of a request, each with its name, that would take something out of the conversation."""
    edits = body.context_management.edits if body.context_management is not None else None
    for index, edit in enumerate(edits or ()):
        if edit.get("type") != _KEPT_THINKING or edit.get("keep") not in ("all", {"type": "all"}):
            yield f"context_management.edits[{index}]", edit


def _set_sampling(chat: ChatRequest, body: MessagesRequest) -> None:
    if body.max_tokens < 1:
        raise InvalidRequestError("max_tokens", body.max_tokens, "a whole number over 0")
    chat.max_completion_tokens = body.max_tokens
    chat.stream = body.stream
    chat.stop = body.stop_sequences
    chat.temperature, chat.top_p, chat.top_k = body.temperature, body.top_p, body.top_k
    chat.cache_salt = body.cache_salt
    given = body.output_config.format if body.output_config is not None else None
    if (form := given or body.output_format) is not None:
        schema = JsonSchema(name="output", json_schema=form.schema)
        chat.response_format = JsonSchemaFormat(json_schema=schema)


def _set_thinking(chat: ChatRequest, body: CountRequest, *, has_reasoning: bool) -> None:
    thinking = body.thinking
    if thinking is None:
        return
    budget = thinking.budget_tokens
    if thinking.type != "enabled":
        if budget is not None:
            raise InvalidRequestError("thinking.budget_tokens", budget, "nothing, unless type is enabled")
        chat.enable_thinking = False if thinking.type == "disabled" else None
        return
    chat.enable_thinking = True
    if budget is None or budget < LEAST_BUDGET:
        raise InvalidRequestError("thinking.budget_tokens", budget, f"at least {LEAST_BUDGET}")
    if has_reasoning:
        chat.thinking_token_budget = budget


def _choose_tools(chat: ChatRequest, choice: InputToolChoice | None) -> None:
    if choice is None:
        return
    if choice.disable_parallel_tool_use:
        chat.parallel_tool_calls = False
    if choice.type in ("any", "tool") and not chat.tools:
        raise InvalidRequestError("tool_choice.type", choice.type, "auto or none: the request has no tools")
    match choice.type:
        case "any":
            chat.tool_choice = "required"
        case "tool":
            if not choice.name:
                raise InvalidRequestError("tool_choice.name", choice.name, "the name of a tool")
            chat.tool_choice = NamedTool(function=NamedFunction(name=choice.name))
        case "auto":
            chat.tool_choice = "auto" if chat.tools else None
        case "none":
            chat.tool_choice = "none"


def _chat_tool(name: str, tool: InputTool) -> ChatTool:
    if tool.type not in (None, "custom"):
        raise InvalidRequestError(f"{name}.type", tool.type, "custom: no tool is called here")
    function = FunctionDefinition(
        name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict
    )
    return ChatTool(function=function)


def _conversation(body: CountRequest) -> list[ChatMessage]:
    """Return the messages of a request, of which only the first may be of the system.

    Templates refuse later ones, or move them to the front, where they change the prefix of every turn. So a
    system message joins the user's message or the result before it, else the user's message after it.
    """
    systems = [] if body.system is None else [_system_text("system", body.system)]
    messages: list[ChatMessage] = []
    pending = ""
    """Text that follows a reply."""
    for index, message in enumerate(body.messages):
        name = f"messages[{index}]"
        if message.role == "system":
            text = _system_text(f"{name}.content", message.content)
            if not messages:
                systems.append(text)
            elif messages[-1].role == "assistant":
                pending = _joined(pending, text)
            else:
                messages[-1].content = _joined(str(messages[-1].content), text)
            continue
        read = _chat_messages(name, message)
        if pending:
            if message.role == "assistant":
                messages.append(ChatMessage(role="user", content=pending))
            else:
                read[-1].content = _joined(pending, str(read[-1].content))
        messages += read
        pending = ""
    if pending:
        messages.append(ChatMessage(role="user", content=pending))
    system = _joined(*systems)
    return [ChatMessage(role="system", content=system), *messages] if system or not messages else messages


def _joined(*texts: str) -> str:
    return "\n\n".join(filter(None, texts))


def _system_text(name: str, content: str | Sequence[AnyBlock]) -> str:
    """Return the text of the system, without the part that Anthropic's servers read themselves."""
    if isinstance(content, str):
        return content
    texts = (_text_of_block(f"{name}[{index}]", block, "text") for index, block in enumerate(content))
    return "\n".join(text for text in texts if not text.startswith(_BILLING))


def _chat_messages(name: str, message: InputMessage) -> list[ChatMessage]:
    """Return a message as chats have it: the result of each call is a message of its own."""
    role = "assistant" if message.role == "assistant" else "user"
    if isinstance(message.content, str):
        return [ChatMessage(role=role, content=message.content)]
    if role == "assistant":
        return [_reply(name, message.content)]
    messages: list[ChatMessage] = []
    texts: list[str] = []
    for index, block in enumerate(message.content):
        at = f"{name}.content[{index}]"
        if isinstance(block, ToolResultBlock):
            messages.append(_tool_result(at, block))
        else:
            texts.append(_text_of_block(at, block, "text, tool_result, tool_reference"))
    if texts or not messages:
        messages.append(ChatMessage(role=role, content="\n".join(texts)))
    return messages


def _reply(name: str, blocks: Sequence[AnyBlock]) -> ChatMessage:
    """Return an earlier reply: its text, its calls and its reasoning."""
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCallOfMessage] = []
    for index, block in enumerate(blocks):
        match block:
            case ToolUseBlock():
                function = CalledFunction(name=block.name, arguments=json.dumps(block.input))
                calls.append(ToolCallOfMessage(function=function, id=block.id))
            case ThinkingBlock():
                reasoning.append(block.thinking)
            case RedactedThinkingBlock():
                pass
            case _:
                allowed = "text, tool_use, tool_reference, thinking, redacted_thinking"
                texts.append(_text_of_block(f"{name}.content[{index}]", block, allowed))
    return ChatMessage(
        role="assistant",
        content="\n".join(texts) if texts or not calls else None,
        tool_calls=calls or None,
        reasoning_content="\n".join(reasoning) or None,
    )


def _tool_result(name: str, block: ToolResultBlock) -> ChatMessage:
    content = block.content or ""
    if not isinstance(content, str):
        allowed = "text, tool_reference"
        parts = enumerate(content)
        content = "\n".join(_text_of_block(f"{name}.content[{at}]", part, allowed) for at, part in parts)
    return ChatMessage(role="tool", tool_call_id=block.tool_use_id, content=content)


def _text_of_block(name: str, block: AnyBlock, allowed: str) -> str:
    match block:
        case TextBlock():
            return block.text
        case ToolReferenceBlock():
            return block.tool_name
        case ImageBlock() | DocumentBlock():
            allowed += ": this router serves models of text"
    raise InvalidRequestError(f"{name}.type", str(type(block).__struct_config__.tag), allowed)
