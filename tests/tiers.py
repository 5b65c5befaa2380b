"""Which of a test's parameters each change is tested with; `make exhaustive` runs the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def exhaustive(*values: Any) -> Any:
    """Return a set of parameters for `make exhaustive` alone."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def one_in(number: int, params: Iterable[Any]) -> list[Any]:
    """Return single parameters, of which each change is tested with one in `number`, from the first on."""
    return [exhaustive(param) if index % number else param for index, param in enumerate(params)]


def chosen(params: Iterable[tuple[Any, ...]], is_chosen: Callable[..., bool]) -> list[Any]:
    """Return sets of parameters, of which each change is tested with those that are chosen."""
    return [param if is_chosen(*param) else exhaustive(*param) for param in params]
