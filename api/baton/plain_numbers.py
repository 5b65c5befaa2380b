"""Numbers that callers took from arrays, as Python's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any


def plain_numbers(value: Any) -> Any:
    """Return a number, or a list or dictionary of some, with Python's types where it has NumPy's.

    Other values come back as they are.
    """
    if isinstance(value, Mapping):
        return {_plain(key): _plain(one) for key, one in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(one) for one in value]
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, int) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)
