"""Structs of msgspec as fields of Pydantic's models, as vLLM's parameters can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec


class PydanticField:
    """A part of structs: models take their objects, or dictionaries of their fields, and write those."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> Any:
        from pydantic_core import core_schema  # only Pydantic asks, which this package does not need

        fields = {
            one.name: core_schema.typed_dict_field(handler(hint), required=one.required)
            for one, hint in _public_fields(source)
        }
        given = core_schema.no_info_after_validator_function(
            lambda values: source(**values), core_schema.typed_dict_schema(fields)
        )
        return core_schema.union_schema(
            [core_schema.is_instance_schema(source), given],
            serialization=core_schema.plain_serializer_function_ser_schema(_shown),
        )


def _public_fields(struct: Any) -> list[tuple[msgspec.structs.FieldInfo, Any]]:
    hints = get_type_hints(struct, include_extras=True)
    return [(one, hints[one.name]) for one in msgspec.structs.fields(struct) if not one.name.startswith("_")]


def _shown(params: Any) -> dict[str, Any]:
    shown = {one.name: getattr(params, one.name) for one, _ in _public_fields(type(params))}
    return {name: msgspec.to_builtins(value) for name, value in shown.items()}
