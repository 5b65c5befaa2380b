"""Conversations as callers of `LLM.chat` give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from baton_core.errors import InvalidRequestError
from baton_router.text.chat_messages import ContentFormats
from baton_router.text.chat_template import Conversation

Messages: TypeAlias = Sequence[Mapping[str, Any]]
"""One conversation: messages with `role`, `content` and what else the chat template knows."""
_CONTENT_FORMATS: Final = {
    "auto": None,
    "string": ContentFormats(takes_text=True, takes_parts=False),
    "openai": ContentFormats(takes_text=False, takes_parts=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """Options of a chat template, under the names of vLLM's `LLM.chat`."""

    chat_template: str | None = None
    """Jinja source to use instead of the model's own."""
    chat_template_content_format: str = "auto"
    """`string` or `openai` give the template contents as text or as lists of parts; `auto` reads off the
    template which of them it takes."""
    add_generation_prompt: bool = True
    """End where the assistant's answer begins."""
    continue_final_message: bool = False
    """The answer continues the last message."""
    tools: Sequence[Mapping[str, Any]] | None = None
    """Functions that the template offers to the model."""
    chat_template_kwargs: Mapping[str, Any] | None = None
    """Further variables of the template."""

    def __post_init__(self) -> None:
        if self.chat_template_content_format not in _CONTENT_FORMATS:
            allowed = ", ".join(_CONTENT_FORMATS)
            value = self.chat_template_content_format
            raise InvalidRequestError("chat_template_content_format", value, allowed)
        tools, arguments = self.tools or (), self.chat_template_kwargs or {}
        if not isinstance(tools, Sequence) or not all(isinstance(tool, Mapping) for tool in tools):
            raise InvalidRequestError("tools", tools, "a list of dictionaries")
        if not isinstance(arguments, Mapping):
            raise InvalidRequestError("chat_template_kwargs", arguments, "a dictionary")


def as_conversations(messages: Messages | Sequence[Messages], options: ChatOptions) -> list[Conversation]:
    """One conversation or many: a list of messages is one, an empty list is none.

    Raises:
        InvalidRequestError: it is neither.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise InvalidRequestError("messages", messages, "a list of messages, or of such lists")
    given = [messages] if messages and isinstance(messages[0], Mapping) else messages
    return [_conversation(one, options) for one in given]


def _conversation(messages: Any, options: ChatOptions) -> Conversation:
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise InvalidRequestError("messages", messages, "a list of messages, or of such lists")
    return Conversation(
        messages=tuple(messages),
        tools=tuple(options.tools or ()),
        add_generation_prompt=options.add_generation_prompt,
        continue_final_message=options.continue_final_message,
        template=options.chat_template,
        template_arguments=dict(options.chat_template_kwargs or {}),
        content_formats=_CONTENT_FORMATS[options.chat_template_content_format],
    )
