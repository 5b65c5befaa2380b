"""Names of logits processors: worker processes import them, so a class object is told by its name too."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import reduce
from importlib.metadata import entry_points
from typing import Any, Final

from baton_core.errors import InvalidConfigError

PLUGINS: Final = "vllm.logits_processors"
"""The group of entry points whose classes are always applied; its name is vLLM's."""


def names_of(processors: Sequence[str | type] | None, *, is_disaggregated: bool) -> tuple[str, ...]:
    """Return the names of functions and classes, `package.module:Class` for a class object.

    Raises:
        InvalidConfigError: a class cannot be imported by its name.
    """
    if isinstance(processors, str) or not isinstance(processors, Sequence):
        return processors  # type: ignore[return-value]  # its field's check refuses or reads it
    return tuple(_name_of(one, is_disaggregated) if isinstance(one, type) else one for one in processors)


def installed_names() -> tuple[str, ...]:
    """Return the names of the classes that installed packages declare."""
    return tuple(sorted(one.value for one in entry_points(group=PLUGINS)))


def applied_names(processors: Sequence[str | type]) -> tuple[str, ...]:
    """Return the names that an engine loads: those of installed packages, then those of its arguments."""
    return (*installed_names(), *map(str, processors))


def _name_of(found: type, is_disaggregated: bool) -> str:
    module, path = found.__module__, found.__qualname__
    named: Any = reduce(
        lambda part, name: getattr(part, name, None), path.split("."), sys.modules.get(module)
    )
    if named is not found:
        allowed = "classes at the level of a module, which can be imported by their names"
        raise InvalidConfigError(f"logits_processors has {found!r}; allowed: {allowed}")
    if is_disaggregated and module == "__main__":
        allowed = "classes of modules that worker processes can import, not of the script itself"
        raise InvalidConfigError(f"logits_processors has {found!r}; allowed: {allowed}")
    return f"{module}:{path}"
