"""Methods of one object that take turns: called from several threads, one runs and the others wait."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar


class TakesTurns(Protocol):
    """An object with a lock that the thread which holds it may take again."""

    _turn: AbstractContextManager[Any]


S = TypeVar("S", bound=TakesTurns)
P = ParamSpec("P")
T = TypeVar("T")


def in_turn(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Make a method wait while another thread is in one of the same object."""

    @wraps(method)
    def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._turn:
            return method(self, *args, **kwargs)

    return run
