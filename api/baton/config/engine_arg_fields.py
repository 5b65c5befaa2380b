"""Fields of `EngineArgs` with their allowed values: the one source of their checks and flags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import Field, field, fields
from enum import StrEnum
from typing import Any

from baton.config.flags import Flag, Pattern, Range
from baton_core.errors import InvalidConfigError


class Part(StrEnum):
    """The part of the system that needs a field."""

    WORKER = "worker"
    ROUTER = "router"
    BOTH = "both"
    LAUNCHER = "launcher"
    """The launcher of router and workers, which do not need the field."""
    CALLER = "caller"
    """The process that has the object, alone."""


def arg(
    kind: type,
    default: Any,
    help_: str,
    values: tuple[str, ...] | Pattern | Range | None = None,
    part: Part = Part.WORKER,
    *,
    takes_function: bool = False,
    **options: Any,
) -> Any:
    """Declare a field; all but `part` is that of its `Flag`. In Python it may take a function too."""
    metadata = {
        "flag": (kind, default, help_, values),
        "part": part,
        "takes_function": takes_function,
        "options": options,
    }
    return field(default=default, metadata=metadata)


def flags_of(cls: type, *parts: Part) -> tuple[Flag, ...]:
    """Flags of the fields that these parts need to know, but that of the model, which comes by its place."""
    wanted = parts or tuple(Part)
    return tuple(
        flag_of(one) for one in _declared(cls) if one.metadata["part"] in wanted and one.name != "model"
    )


def flag_of(one: Field[Any]) -> Flag:
    """The flag of one field."""
    declared = one.metadata
    return Flag("--" + one.name.replace("_", "-"), *declared["flag"], **declared["options"])


def check_fields(args: Any) -> None:
    """Check every declared field of a dataclass; mutates it: what a flag would read is read.

    Raises:
        InvalidConfigError: naming the field, its value and what is allowed.
    """
    for one in _declared(type(args)):
        flag, value = flag_of(one), getattr(args, one.name)
        if one.metadata["takes_function"] and callable(value):
            continue
        if value is not None or flag.default is not None:
            setattr(args, one.name, _check(flag, one.name, value))


def _check(flag: Flag, name: str, value: object) -> Any:
    if not flag.is_list:
        return flag.check(value, name)
    values: Sequence[object] = () if value is None else (value,) if isinstance(value, str) else value  # type: ignore[assignment]
    if not isinstance(values, Sequence):
        raise InvalidConfigError(f"{name} is {value!r}; allowed: a list of {flag.allowed}")
    return tuple(flag.check(each, name) for each in values)


def _declared(cls: type) -> Iterator[Field[Any]]:
    return (one for one in fields(cls) if one.metadata)
