"""JSON that is too long to be written at once: its long lists are made while they are written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import UNSET
from msgspec.structs import fields

Element = TypeVar("Element")
_FEW: Final = 16
"""Elements of a list that is made at once, as those of most chunks of a stream are."""


class _Lazy:
    """The elements of a list that is written once."""

    __slots__ = ("elements",)

    def __init__(self, elements: Iterable[Any]) -> None:
        self.elements = elements


class _IsLazyError(Exception):
    """A value cannot be encoded at once."""


def lazily(elements: Iterable[Element]) -> list[Element]:
    """Return what stands for a list of these elements in a value that `json_pieces` writes, once."""
    return cast(list[Element], _Lazy(elements))


def as_list(elements: Iterable[Element], num_elements: int) -> list[Element]:
    """Return a list of these elements, made at once if they are few."""
    return list(elements) if num_elements <= _FEW else lazily(elements)


def elements_of(made: list[Element]) -> Iterable[Element]:
    """Return the elements of a list, of whichever kind."""
    return made.elements if isinstance(made, _Lazy) else made


def json_at_once(value: object) -> bytes | None:
    """Return the JSON of a value as msgspec writes it; None if a list in it is made while it is written."""
    try:
        return _encoder.encode(value)
    except _IsLazyError:
        return None


def json_pieces(value: object) -> Iterator[bytes]:
    """Yield the JSON of a value as msgspec writes it; a piece is one element of a long list."""
    if (whole := json_at_once(value)) is not None:
        yield whole
        return
    match value:
        case msgspec.Struct():
            yield from _struct_pieces(value)
        case _Lazy(elements=elements):
            yield from _list_pieces(elements)
        case list():
            yield from _list_pieces(value)
        case _:
            raise TypeError(f"a list in {type(value)} is made while it is written")


def _struct_pieces(value: msgspec.Struct) -> Iterator[bytes]:
    assert not value.__struct_config__.omit_defaults, "each field is written"
    before = b"{"
    for field in fields(value):
        of_field = getattr(value, field.name)
        if of_field is not UNSET:
            yield b'%b"%b":' % (before, field.encode_name.encode())
            yield from json_pieces(of_field)
            before = b","
    yield b"}" if before == b"," else b"{}"


def _list_pieces(elements: Iterable[Any]) -> Iterator[bytes]:
    before = b"["
    for element in elements:
        for piece in json_pieces(element):
            yield before + piece
            before = b""
        before = b","
    yield b"]" if before == b"," else b"[]"


def _refuse(value: object) -> object:
    if isinstance(value, _Lazy):
        raise _IsLazyError
    raise NotImplementedError(f"{type(value)} has no JSON")


_encoder: Final = msgspec.json.Encoder(enc_hook=_refuse)
