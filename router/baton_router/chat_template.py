"""Renders a conversation with the model's own Jinja template, as Transformers does.

Called in the tokenizing threads: a rendering changes nothing in its template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from baton_core.errors import InvalidModelError, InvalidRequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A prompt that the model's chat template turns into text."""

    messages: tuple[ChatMessage, ...]


class ChatTemplate:
    """A compiled template and the special tokens it may name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile `source`.

        Raises:
            InvalidModelError: it is not a Jinja template.
        """
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise InvalidModelError(f"chat_template is no template ({error}); allowed: Jinja") from error

    def render(self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = True) -> str:
        """Return the conversation as text that ends, if told so, where the assistant's answer begins.

        Raises:
            InvalidRequestError: the template refuses these messages.
        """
        try:
            return self._template.render(
                messages=[asdict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            roles = ", ".join(message.role for message in messages)
            allowed = f"what the model's chat template takes ({error!s:.200})"
            raise InvalidRequestError("chat", f"messages of {roles}", allowed) from error


class _GenerationBlock(Extension):
    """`{% generation %}`: marks the assistant's words for training; renders as its body."""

    tags = {"generation"}  # noqa: RUF012  (Jinja declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes for HTML; models were trained on plain JSON."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
