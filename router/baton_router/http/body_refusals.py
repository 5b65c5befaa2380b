"""Words for a field of a body that the decoder refuses: its name, its value, and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec import inspect as types

from baton_core.errors import InvalidRequestError, shown_briefly

_AT: Final = re.compile(r"(.*) - at `(key in )?\$\.?(.*)`", re.DOTALL)
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(.*)`")
_EXPECTED: Final = re.compile(r"Expected (.*?)(?:, got `\w+`)?")
_STEP: Final = re.compile(r"\[(\d+)\]|([^.\[\]]+)|\.")
_MAX_READ_BYTES: Final = 2**16
"""Bytes of a body that is read again for the value of a field."""


class BodyFieldError(InvalidRequestError):
    """A field of a body that does not fit its type, with the decoder's message."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(field, None, message)
        self.args = (message,)


def is_of_unknown_field(message: str) -> bool:
    """Return whether a message of the decoder is about a field that no type knows."""
    return _UNKNOWN.match(message) is not None


def refusal_of(message: str, body: bytes, kind: Any) -> BodyFieldError:
    """Return the refusal of a body that was to be of the type `kind`; `message` is the decoder's."""
    at = _AT.fullmatch(message)
    text, path = (at[1], at[3]) if at else (message, "")
    for pattern, what in ((_UNKNOWN, "unknown; allowed: the fields in /openapi.json"), (_MISSING, "missing")):
        if (found := pattern.fullmatch(text)) is not None:
            field = found[1] or "''"
            name = f"{path}.{field}" if path else field
            return BodyFieldError(name[:200], f"{name[:200]} is {what}")
    name = path or "body"
    steps = None if at and at[2] else _steps(path)
    if steps is not None:
        allowed, given = allowed_at(text, kind, steps), _given(body, steps)
        if allowed and given:
            return BodyFieldError(name, f"{name} is {given}; allowed: {allowed}")
    return BodyFieldError(name, f"{name} is of the wrong type or out of range: {text[0].lower()}{text[1:]}")


def _steps(path: str) -> list[str | int] | None:
    """Return the names and indexes of a path; None where it leads through the keys of an object (`[...]`)."""
    if "[...]" in path:
        return None
    return [int(one[1]) if one[1] else one[2] for one in _STEP.finditer(path) if one[0] != "."]


def _given(body: bytes, steps: Iterable[str | int]) -> str | None:
    """Return the value at a place of a body, shown; None where the body is large or no JSON."""
    if len(body) > _MAX_READ_BYTES:
        return None
    try:
        value = msgspec.json.decode(body)
        for step in steps:
            value = value[step]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        return None
    return shown_briefly(value)


def allowed_at(text: str, kind: Any, steps: Iterable[str | int]) -> str:
    """Return what is allowed at a place where the decoder says `text`; nothing where that is not known."""
    if (expected := _EXPECTED.fullmatch(text)) is not None:
        return expected[1].replace("`", "").replace(" | ", " or ")
    nodes = [*_plain(types.type_info(kind))]
    for step in steps:
        nodes = [inner for node in nodes for inner in _within(node, step)]
    values = [str(value) for node in nodes if isinstance(node, types.LiteralType) for value in node.values]
    if values and any(isinstance(node, types.StructType) for node in nodes):
        values.append("or an object")
    return ", ".join(values)


def _within(node: types.Type, step: str | int) -> Iterator[types.Type]:
    """Yield the types that a value may have at one step into a value of type `node`."""
    match node:
        case types.ListType() if isinstance(step, int):
            yield from _plain(node.item_type)
        case types.StructType() if step == node.tag_field:
            yield types.LiteralType((node.tag,))
        case types.StructType():
            for field in node.fields:
                if field.encode_name == step:
                    yield from _plain(field.type)


def _plain(node: types.Type) -> Iterator[types.Type]:
    """Yield the types of which `node` is one."""
    match node:
        case types.Metadata():
            yield from _plain(node.type)
        case types.UnionType():
            for each in node.types:
                yield from _plain(each)
        case _:
            yield node
