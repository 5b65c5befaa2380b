from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import UNSET, UnsetType

from baton_router.http.json_pieces import as_list, elements_of, json_pieces, lazily


class Inner(msgspec.Struct, kw_only=True, omit_defaults=True):
    name: str | None = None


class Outer(msgspec.Struct, kw_only=True):
    text: str
    left_out: int | UnsetType = UNSET
    items: list[Any]
    inner: Inner | None = None


def written(value: object) -> bytes:
    return b"".join(json_pieces(value))


@pytest.mark.parametrize("items", [[], [1], [None, {"a": 1.5}, "ü\n", Inner(), Inner(name="x")]])
def test_what_is_made_while_it_is_written_looks_as_if_it_had_been_there(items: list[Any]) -> None:
    plain = Outer(text="a", items=[Outer(text="b", items=items, inner=Inner(name="y")), *items])
    lazy = Outer(
        text="a",
        items=lazily(iter([Outer(text="b", items=lazily(iter(items)), inner=Inner(name="y")), *items])),
    )
    assert written(lazy) == written(plain) == msgspec.json.encode(plain)


def test_elements_are_made_one_by_one_as_their_pieces_are_taken() -> None:
    made: list[int] = []

    def make() -> Any:
        for number in range(3):
            made.append(number)
            yield number

    pieces = json_pieces({"a": 1})
    assert list(pieces) == [b'{"a":1}']
    pieces = json_pieces(lazily(make()))
    assert (next(pieces), made) == (b"[0", [0])
    assert (next(pieces), made) == (b",1", [0, 1])
    assert list(pieces) == [b",2", b"]"]


def test_short_lists_are_lists() -> None:
    assert as_list(iter(range(3)), 3) == [0, 1, 2]
    assert list(elements_of(as_list(iter(range(300)), 300))) == list(range(300))
    assert elements_of([1, 2]) == [1, 2]
