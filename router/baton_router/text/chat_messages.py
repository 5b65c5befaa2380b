"""Makes of a client's messages what a chat template reads.

OpenAI's clients send contents as text or as a list of parts, and arguments of tool calls as JSON text.
Templates know one form or the other of a content, and arguments as objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from jinja2 import nodes

from baton_core.errors import InvalidRequestError
from baton_router.text.characters import read_json

_TEXT_PARTS: Final = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Types of parts, and the key of each that has its text."""
_REASONING_KEYS: Final = ("reasoning_content", "thinking", "reasoning")
Message = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentFormats:
    """Formats of a message's content that a template takes."""

    takes_text: bool
    takes_parts: bool

    @classmethod
    def of(cls, template: nodes.Template) -> Self:
        """Read off a parsed template: one that loops over a content takes parts.

        One that also tests whether a content is a string takes both.
        """
        names = {
            node.target.name
            for node in template.find_all(nodes.Assign)
            if isinstance(node.target, nodes.Name) and _is_content(node.node, frozenset())
        }
        contents = frozenset(names)
        takes_parts = any(_is_content(loop.iter, contents) for loop in template.find_all(nodes.For))
        tests_text = any(
            test.name == "string" and _is_content(test.node, contents)
            for test in template.find_all(nodes.Test)
        )
        return cls(takes_text=tests_text or not takes_parts, takes_parts=takes_parts)


_TEXT_ONLY: Final = ContentFormats(takes_text=True, takes_parts=False)


def read_messages(messages: Sequence[Mapping[str, Any]], formats: ContentFormats) -> list[Message]:
    """Return copies of the messages, in formats that the template takes.

    Parts are joined by line feeds for a template that takes only text.

    Raises:
        InvalidRequestError: a part is none of text, or a message is out of form; the message names it.
    """
    return [_read_message(f"messages[{index}]", message, formats) for index, message in enumerate(messages)]


def _read_message(name: str, message: Mapping[str, Any], formats: ContentFormats) -> Message:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InvalidRequestError(name, message, "objects with a role")
    read: Message = {key: value for key, value in message.items() if value is not None}
    read["content"] = _read_content(f"{name}.content", message, formats)
    if "tool_calls" in read:
        read["tool_calls"] = _read_calls(f"{name}.tool_calls", read["tool_calls"])
        if not read["tool_calls"]:  # templates test for the key
            del read["tool_calls"]
    reasoning = next((message[key] for key in _REASONING_KEYS if message.get(key) is not None), None)
    if reasoning is not None:
        read = {"thinking": reasoning, **read, "reasoning_content": reasoning}
    return read


def _read_content(name: str, message: Mapping[str, Any], formats: ContentFormats) -> str | list[Message]:
    """Return a content in a format that the template takes; a tool's result is text for every template."""
    if message["role"] == "tool":
        formats = _TEXT_ONLY
    match message.get("content"):
        case None:
            return "" if formats.takes_text else []
        case str() as text:
            return text if formats.takes_text else [{"type": "text", "text": text}]
        case list() | tuple() as parts:
            texts = [_text_of(f"{name}[{index}]", part) for index, part in enumerate(parts)]
            as_parts: list[Message] = [{"type": "text", "text": text} for text in texts]
            return as_parts if formats.takes_parts else "\n".join(texts)
        case content:
            raise InvalidRequestError(name, content, "text, a list of parts, or null")


def _text_of(name: str, part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise InvalidRequestError(name, part, "an object with type and text")
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in _TEXT_PARTS:
        raise InvalidRequestError(f"{name}.type", kind, "text: this router serves models of text")
    text = part.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise InvalidRequestError(f"{name}.{_TEXT_PARTS[kind]}", text, "a string")
    return text


def _read_calls(name: str, calls: object) -> list[Message]:
    if not isinstance(calls, list | tuple):
        raise InvalidRequestError(name, calls, "a list of tool calls")
    read = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise InvalidRequestError(f"{name}[{index}]", call, "an object with a function")
        arguments = _read_arguments(function.get("arguments"))
        read.append({**call, "function": {**function, "arguments": arguments}})
    return read


def _read_arguments(arguments: object) -> object:
    """Return the value of JSON text, and others as they are; no arguments where there is no such value.

    The text of a call may have been cut within its arguments, and the conversation goes on.
    """
    value = arguments
    if isinstance(arguments, str):
        try:
            value = read_json(arguments)
        except (ValueError, RecursionError):
            value = None
    return {} if value is None else value


def _is_content(node: nodes.Node, names: frozenset[str]) -> bool:
    """Return whether an expression is a message's content, perhaps filtered, or a variable of `names`."""
    match node:
        case nodes.Filter(node=inner) if inner is not None:
            return _is_content(inner, names)
        case nodes.Getitem(node=inner, arg=nodes.Slice()):
            return _is_content(inner, names)
        case nodes.Getitem(arg=nodes.Const(value="content")) | nodes.Getattr(attr="content"):
            return True
        case nodes.Name(name=name):
            return name in names
        case _:
            return False
