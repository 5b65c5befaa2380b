"""Renders a conversation with a Jinja template, as Transformers does.

Untrusted templates, and templates over untrusted messages, are rendered only in a bounded process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from jinja2 import TemplateError

from baton_core.errors import (
    InvalidConfigError,
    InvalidModelError,
    InvalidRequestError,
)
from baton_router.text.chat_messages import ContentFormats, Message, read_messages
from baton_router.text.template_sandbox import make_environment, render_bounded

MAX_TEMPLATE_CHARACTERS: Final = 2**18
_CONTINUED: Final = "\ue000\ue001 "
"""Marks in a rendering where the last message ends; the space shows whether the template strips it."""
_RESERVED: Final = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}
    | {"chat_template", "tokenize", "return_dict"}
)
_CONTENT_FORMATS: Final[Mapping[str, ContentFormats | None]] = {
    "auto": None,
    "string": ContentFormats(takes_text=True, takes_parts=False),
    "openai": ContentFormats(takes_text=False, takes_parts=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A prompt that a chat template turns into text."""

    messages: tuple[Mapping[str, Any], ...]
    """Each with a `role` and what the template knows: `content`, `tool_calls` and so on."""
    tools: tuple[Mapping[str, Any], ...] = ()
    documents: tuple[Mapping[str, Any], ...] = ()
    add_generation_prompt: bool = True
    """The prompt ends where the assistant's message begins."""
    continue_final_message: bool = False
    """The prompt ends within the last message, which the output continues."""
    template: str | None = None
    """Jinja source to use instead of the model's."""
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further variables of the template."""
    content_formats: ContentFormats | None = None
    """Formats of contents that the template gets; None detects those that it takes."""

    @property
    def continues_text(self) -> bool:
        """True if the output continues a last message that has text already."""
        if not (self.continue_final_message and self.messages):
            return False
        content = self.messages[-1].get("content")
        return any(map(_has_text, [content] if isinstance(content, str) else content or ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatDefaults:
    """Template arguments and content format of conversations that do not say it themselves.

    Raises:
        InvalidConfigError: an argument has a reserved name, or the format is unknown.
    """

    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further variables of the template; those of the conversation come first."""
    content_format: str = "auto"
    """Format of contents: `string`, `openai` for lists of parts, or what the template takes."""

    def __post_init__(self) -> None:
        for name in self.template_arguments:
            if name in _RESERVED:
                allowed = f"names but {', '.join(sorted(_RESERVED))}"
                raise InvalidConfigError(f"--default-chat-template-kwargs has {name!r}; allowed: {allowed}")
        if self.content_format not in _CONTENT_FORMATS:
            raise InvalidConfigError(
                f"--chat-template-content-format is {self.content_format!r}; "
                f"allowed: {', '.join(_CONTENT_FORMATS)}"
            )

    def complete(self, conversation: Conversation) -> Conversation:
        """Return the conversation with what it lacks."""
        return replace(
            conversation,
            template_arguments={**self.template_arguments, **conversation.template_arguments},
            content_formats=conversation.content_formats or _CONTENT_FORMATS[self.content_format],
        )


class ChatTemplate:
    """A compiled template."""

    def __init__(self, source: str) -> None:
        """Compile `source`.

        Raises:
            InvalidModelError: it is not a Jinja template, or too long for one.
        """
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            allowed = f"at most {MAX_TEMPLATE_CHARACTERS}"
            raise InvalidModelError(f"chat_template is of {len(source)} characters; allowed: {allowed}")
        self._knows_developers = "developer" in source
        environment = make_environment()
        try:
            self._formats = ContentFormats.of(environment.parse(source))
            self._template = environment.from_string(source)
        except Exception as error:  # Jinja compiles to Python, whose own limits raise various errors
            raise InvalidModelError(f"chat_template is no template ({error}); allowed: Jinja") from error

    def render(self, conversation: Conversation, special_tokens: Mapping[str, str] | None = None) -> str:
        """Return the conversation as text; templates may name the model's `special_tokens`.

        Raises:
            InvalidRequestError: the template refuses these messages, or they are malformed.
        """
        _check(conversation)
        messages = read_messages(conversation.messages, conversation.content_formats or self._formats)
        if not self._knows_developers:
            _rename_developers(messages)
        final_text = _mark(messages) if conversation.continue_final_message else None
        variables = {
            **(special_tokens or {}),
            **conversation.template_arguments,
            "messages": messages,
            "tools": [dict(tool) for tool in conversation.tools] or None,
            "documents": [dict(document) for document in conversation.documents] or None,
            "add_generation_prompt": conversation.add_generation_prompt,
        }
        try:
            text = render_bounded(self._template, variables)
        except Exception as error:  # a template is code: it may raise anything
            roles = ", ".join(message["role"] for message in messages)
            reason = str(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
            allowed = f"what the model's chat template takes ({reason:.200})"
            raise InvalidRequestError("chat", f"messages of {roles}", allowed) from error
        return text if final_text is None else _cut(text, final_text)


def _has_text(part: object) -> bool:
    """Return whether a content, or a part of one, is more than white space."""
    text = part.get("text") if isinstance(part, Mapping) else part
    return isinstance(text, str) and bool(text.strip())


def _check(conversation: Conversation) -> None:
    if not conversation.messages:
        raise InvalidRequestError("messages", [], "at least one message")
    if conversation.continue_final_message and conversation.add_generation_prompt:
        allowed = "true for one of continue_final_message and add_generation_prompt alone"
        raise InvalidRequestError("continue_final_message", True, allowed)
    for name in conversation.template_arguments:
        if not isinstance(name, str) or name in _RESERVED:
            allowed = f"names but {', '.join(sorted(_RESERVED))}"
            raise InvalidRequestError("chat_template_kwargs", name, allowed)


def _rename_developers(messages: list[Message]) -> None:
    """Rename the role to its older name, which such templates know."""
    for message in messages:
        if message["role"] == "developer":
            message["role"] = "system"


def _mark(messages: list[Message]) -> str:
    """Append the mark to the last message's text; return that text."""
    last = messages[-1]
    match last.get("content"):
        case str() as text:
            last["content"] = text + _CONTINUED
            return text
        case [*_, part]:
            text = str(part["text"])
            part["text"] = text + _CONTINUED
            return text
        case content:
            raise InvalidRequestError("continue_final_message", True, f"false after a content of {content!r}")


def _cut(text: str, final_text: str) -> str:
    """Return what comes before the mark, without the space that the template strips there."""
    end = text.rfind(_CONTINUED.rstrip())
    if end < 0 or not text[:end].rstrip().endswith(final_text.strip()):
        allowed = "false: the chat template does not write the last message as it is"
        raise InvalidRequestError("continue_final_message", True, allowed)
    return text[:end] if text.startswith(_CONTINUED, end) else text[:end].rstrip()
