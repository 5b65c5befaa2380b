"""Reads the conversation of a request, for chat and for `/tokenize`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from baton_core.errors import InvalidRequestError
from baton_router.chat_template import Conversation
from baton_router.http.chat_schemas import MAX_MESSAGES, ROLES, ChatMessage, ChatTool


class ConversationFields(Protocol):
    """The fields of a request that make its conversation."""

    @property
    def messages(self) -> Sequence[ChatMessage] | None: ...
    @property
    def tools(self) -> Sequence[ChatTool] | None: ...
    @property
    def documents(self) -> Sequence[Mapping[str, Any]] | None: ...
    @property
    def add_generation_prompt(self) -> bool | None: ...
    @property
    def continue_final_message(self) -> bool | None: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def chat_template_kwargs(self) -> Mapping[str, Any] | None: ...
    @property
    def reasoning_effort(self) -> str | None: ...


def read_conversation(fields: ConversationFields) -> Conversation:
    """Return the conversation as the template gets it; forms of contents are checked there.

    Raises:
        InvalidRequestError: a message is not one of its role; the error names it.
    """
    messages = fields.messages or ()
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequestError("messages", f"{len(messages)} messages", f"at most {MAX_MESSAGES}")
    continues = bool(fields.continue_final_message)
    prompted = fields.add_generation_prompt
    return Conversation(
        messages=tuple(
            _read_message(f"messages[{index}]", message) for index, message in enumerate(messages)
        ),
        tools=tuple(_write_tool(tool) for tool in fields.tools or ()),
        documents=tuple(fields.documents or ()),
        add_generation_prompt=not continues if prompted is None else prompted,
        continue_final_message=continues,
        template=fields.chat_template,
        template_arguments=_template_arguments(fields),
    )


def _template_arguments(fields: ConversationFields) -> Mapping[str, Any]:
    """Return the further variables of the template; those of the client's own come first."""
    given = fields.chat_template_kwargs or {}
    if fields.reasoning_effort is None:
        return given
    is_thinking = fields.reasoning_effort != "none"
    return {"enable_thinking": is_thinking, **given, "reasoning_effort": fields.reasoning_effort}


def _read_message(name: str, message: ChatMessage) -> dict[str, Any]:
    role = message.role
    if role not in ROLES:
        raise InvalidRequestError(f"{name}.role", role, ", ".join(ROLES))
    if message.content is None and role != "assistant":
        raise InvalidRequestError(f"{name}.content", None, "text, or a list of parts of type text")
    for field, owner in (("tool_calls", "assistant"), ("tool_call_id", "tool")):
        if getattr(message, field) is not None and role != owner:
            raise InvalidRequestError(f"{name}.{field}", "given", f"in messages of role {owner} alone")
    read: dict[str, Any] = msgspec.to_builtins(message)
    read.pop("annotations", None)
    read["content"] = "" if message.content is None else message.content
    if message.tool_calls:
        read["tool_calls"] = [
            {"type": "function", **{key: value for key, value in call.items() if key != "index"}}
            for call in read["tool_calls"]
        ]
    else:
        read.pop("tool_calls", None)
    return read


def _write_tool(tool: ChatTool) -> dict[str, Any]:
    return {"type": "function", "function": msgspec.to_builtins(tool.function)}
