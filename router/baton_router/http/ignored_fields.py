"""Fields of bodies that no route knows: they are taken out, named in the reply, counted and logged."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from msgspec import inspect as types

from baton_router.metrics.http_metrics import HttpMetrics

IGNORED_HEADER: Final = "x-baton-ignored"
MAX_STEPS: Final = 2**14
"""Objects of one body that are searched, and unknown fields that are found."""
_MAX_NAMES: Final = 16
"""Fields of one body that are named."""
_MAX_LOGGED: Final = 256
"""Fields that a process logs, each once."""
_PRINTABLE: Final = re.compile(r"[\w.-]{1,64}", re.ASCII)
_log = logging.getLogger(__name__)


class TooManyStepsError(Exception):
    """A body would take more than `MAX_STEPS`."""


@dataclass(frozen=True, slots=True)
class _Object:
    """The fields of an object, and the shapes of their values."""

    fields: dict[str, tuple[_Shape, ...]]
    tag_field: str | None
    tag: str | int | None

    def fits(self, value: dict[str, Any]) -> bool:
        """Return whether a value is of this kind: a tag tells kinds apart."""
        return self.tag_field is None or value.get(self.tag_field) == self.tag


@dataclass(frozen=True, slots=True)
class _Items:
    """A list whose items have shapes."""

    shapes: tuple[_Shape, ...]


_Shape: TypeAlias = _Object | _Items


def shapes_of(kind: Any) -> tuple[_Shape, ...]:
    """Return the shapes that values of a type may have; none where no field in it has a name of its own."""
    return _shapes(types.type_info(kind))


def _shapes(node: types.Type) -> tuple[_Shape, ...]:
    match node:
        case types.Metadata():
            return _shapes(node.type)
        case types.UnionType():
            return tuple(shape for each in node.types for shape in _shapes(each))
        case types.ListType():
            return (_Items(inner),) if (inner := _shapes(node.item_type)) else ()
        case types.StructType():
            fields = {each.encode_name: _shapes(each.type) for each in node.fields}
            if node.tag_field is not None:
                fields[node.tag_field] = ()
            return (_Object(fields, node.tag_field, node.tag),)
        case _:
            return ()


@dataclass(slots=True)
class Removal:
    """The fields that were taken out of one body."""

    names: dict[str, None] = field(default_factory=dict)
    """At most `_MAX_NAMES`, such as `messages[].foo`; what could not stand in a header is a question mark."""
    places: set[str] = field(default_factory=set)
    """The known objects that had them, such as `messages[]`; empty for the body itself."""
    _num_steps: int = 0

    def remove(self, value: Any, shapes: Iterable[_Shape], at: str = "") -> None:
        """Take out of `value` what its shapes do not know.

        Raises:
            TooManyStepsError: it would take too long.
        """
        for shape in shapes:
            match shape, value:
                case _Items(), list():
                    for item in value:
                        self.remove(item, shape.shapes, f"{at}[]")
                case _Object(), dict() if shape.fits(value):
                    self._remove_from(value, shape, at)

    def _remove_from(self, value: dict[str, Any], shape: _Object, at: str) -> None:
        unknown = value.keys() - shape.fields.keys()
        self._num_steps += 1 + len(unknown)
        if self._num_steps > MAX_STEPS:
            raise TooManyStepsError
        for name in sorted(unknown):
            del value[name]
            self.add(at, name)
        stem = f"{at}." if at else ""
        for name in value:
            self.remove(value[name], shape.fields[name], stem + name)

    def add(self, at: str, name: str) -> None:
        """Name what an object has in vain."""
        self.places.add(at)
        if len(self.names) < _MAX_NAMES:
            stem = f"{at}." if at else ""
            self.names[stem + (name if _PRINTABLE.fullmatch(name) else "?")] = None


class IgnoredFields:
    """Tells the operator of fields that clients send in vain."""

    def __init__(self, metrics: HttpMetrics) -> None:
        self._metrics = metrics
        self._logged: set[str] = set()

    def note(self, removal: Removal) -> None:
        """Count the objects that had such fields, and log each field's name once."""
        for place in removal.places:
            self._metrics.on_ignored(place)
        new = [name for name in removal.names if name not in self._logged]
        new = new[: _MAX_LOGGED - len(self._logged)]
        if new:
            self._logged.update(new)
            text = "fields of requests are unknown and ignored: %s; --strict-fields refuses such requests"
            _log.warning(text, ", ".join(new))
