"""Reads Python that a model wrote as data: literals, and calls with literal arguments.

Nothing is evaluated: the syntax tree is read, and whatever JSON cannot express is refused.
"""

from __future__ import annotations

import ast
import warnings
from typing import Any, Final

_JSON_WORDS: Final = {"true": True, "false": False, "null": None}


def read_literal(text: str) -> Any:
    """Return the value of a literal; of a tuple, a list.

    Raises:
        ValueError: `text` is no literal that JSON can express.
    """
    try:
        return _value(_parse(text))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_call(text: str) -> tuple[str, dict[str, Any]]:
    """Return name and arguments of `f(a=1, b="x")`. The name may have dots.

    Raises:
        ValueError: `text` is no call, or has an argument that is no literal or has no name.
    """
    try:
        call = _parse(text)
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError("no call whose arguments all have names")
        return _name(call.func), {_keyword(part): _value(part.value) for part in call.keywords}
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _parse(text: str) -> ast.expr:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a string such as "\d" is one, whatever Python thinks of its escape
        try:
            return ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, MemoryError) as error:
            raise ValueError(f"no Python expression ({error})") from None


def _name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=owner, attr=name):
            return f"{_name(owner)}.{name}"
    raise ValueError("no name of a function")


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.Name(id=word) if word in _JSON_WORDS:
            return _JSON_WORDS[word]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
    raise ValueError(f"{type(node).__name__} is no literal")


def _key(node: ast.expr | None) -> str:
    match node:
        case ast.Constant(value=str() as key):
            return key
    raise ValueError("a key that is no string")


def _keyword(part: ast.keyword) -> str:
    if part.arg is None:
        raise ValueError("** is no argument with a name")
    return part.arg
