"""Functions by name: what can be asked of a worker in another process, where nothing is pickled."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from baton_core.errors import InvalidRequestError


def resolve_function(field: str, function: Callable[..., Any] | str) -> Callable[..., Any]:
    """Return a function, or the one that `package.module:function` names.

    Raises:
        InvalidRequestError: there is none of that name.
    """
    if callable(function):
        return function
    allowed = "a function, or the name of one such as package.module:function"
    module, _, name = str(function).partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidRequestError(field, function, f"{allowed} ({error})") from error
    if not callable(found):
        raise InvalidRequestError(field, function, allowed)
    resolved: Callable[..., Any] = found
    return resolved


def require_name(field: str, function: Callable[..., Any] | str) -> str:
    """Return the name of a function that another process is to call.

    Raises:
        InvalidRequestError: it is a function of this process.
    """
    if isinstance(function, str):
        return function
    allowed = "a name such as package.module:function where workers are processes of their own"
    raise InvalidRequestError(field, function, allowed)
