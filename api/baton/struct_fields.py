"""Names of the fields of parameters, as structs of msgspec have them, which vLLM's classes are."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar


class _InitFields:
    """A class attribute: the names of a dataclass's fields that its constructor takes, in order."""

    def __get__(self, instance: object, owner: Any) -> tuple[str, ...]:
        return tuple(one.name for one in fields(owner) if one.init)


class HasStructFields:
    """A part of dataclasses: scripts rebuild their objects field by field."""

    __struct_fields__: ClassVar = _InitFields()
