"""ASGI middleware that the operator names, as vLLM takes it: classes, or functions of a request."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from starlette.middleware.base import BaseHTTPMiddleware
from starlette.types import ASGIApp

from baton_core.errors import InvalidConfigError


def with_middleware(app: ASGIApp, names: Sequence[str]) -> ASGIApp:
    """Return the application within the middleware that is named, the first one outermost.

    A class is called with the application; a coroutine function gets a request and the next handler.

    Raises:
        InvalidConfigError: a name cannot be imported, or is neither.
    """
    for name in reversed(names):
        app = _wrapped(app, name)
    return app


def _wrapped(app: ASGIApp, name: str) -> ASGIApp:
    module, _, attribute = name.replace(":", ".").rpartition(".")
    found: Any
    try:
        found = getattr(import_module(module), attribute)
    except Exception as error:  # a module may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise _refusal(name, f"which cannot be imported ({reason})") from error
    if isinstance(found, type):
        make: Callable[[ASGIApp], ASGIApp] = found
        return make(app)
    if inspect.iscoroutinefunction(found):
        return BaseHTTPMiddleware(app, dispatch=found)
    raise _refusal(name, f"which is a {type(found).__name__}")


def _refusal(name: str, what: str) -> InvalidConfigError:
    allowed = "a class of ASGI middleware, or a coroutine function of request and next handler"
    return InvalidConfigError(f"--middleware is {name!r}, {what}; allowed: {allowed}")
