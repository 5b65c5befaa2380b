"""Descriptions of fields for /openapi.json: the docstrings below them, read from their classes' source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, TypeAlias

from msgspec import inspect as types

_Class: TypeAlias = types.StructType | types.DataclassType | types.TypedDictType | types.NamedTupleType


def field_docs(kind: type) -> dict[str, str]:
    """Descriptions of a type's fields, inherited ones too, by their names in JSON; empty without source."""
    docs: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        docs |= _own_docs(owner)
    return {field.encode_name: docs[field.name] for field in _fields(kind) if field.name in docs}


def classes_of(kinds: Iterable[Any]) -> dict[str, type]:
    """All classes with fields that some types are made of, by name."""
    found: dict[str, type] = {}
    waiting: list[Any] = list(types.multi_type_info(kinds))
    while waiting:
        node = waiting.pop()
        if isinstance(node, _Class):
            if node.cls.__name__ in found:
                continue
            found[node.cls.__name__] = node.cls
        waiting += _parts(node)
    return found


def _fields(kind: type) -> tuple[types.Field, ...]:
    node = types.type_info(kind)
    return node.fields if isinstance(node, _Class) else ()


def _parts(node: types.Type) -> Iterator[types.Type]:
    match node:
        case types.StructType() | types.DataclassType() | types.TypedDictType() | types.NamedTupleType():
            yield from (field.type for field in node.fields)
        case types.UnionType():
            yield from node.types
        case types.CollectionType():
            yield node.item_type
        case types.TupleType():
            yield from node.item_types
        case types.DictType():
            yield from (node.key_type, node.value_type)
        case types.Metadata():
            yield node.type


@cache
def _own_docs(kind: type) -> dict[str, str]:
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError):
        return {}
    assert isinstance(tree, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = inspect.cleandoc(text)
    return docs
