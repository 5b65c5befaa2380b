"""Structured outputs in HTTP requests: `response_format` and `structured_outputs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from baton_core.errors import InvalidRequestError
from baton_core.requests.structured_outputs import StructuredOutputsParams


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Exactly one constraint, or none where `response_format` has it."""

    json: dict[str, Any] | str | None = None
    """A JSON schema."""
    regex: str | None = None
    """A regular expression that the whole output matches."""
    choice: list[str] | None = None
    """Texts of which the output is one."""
    grammar: str | None = None
    """EBNF as in GBNF, or Lark's."""
    json_object: bool | None = None
    """Any JSON object."""
    structural_tag: dict[str, Any] | str | None = None
    """Text with constrained parts."""
    disable_any_whitespace: bool = False
    """JSON is written without optional blanks."""
    disable_additional_properties: bool = False
    """Objects have only the properties that the schema names, unless it says otherwise."""
    whitespace_pattern: str | None = None
    """Refused: `disable_any_whitespace` leaves no blanks."""


class TaggedFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """A format of the output, told apart by its type."""


class TextFormat(TaggedFormat, tag="text"):
    """Any text."""


class JsonObjectFormat(TaggedFormat, tag="json_object"):
    """Any JSON object."""


class JsonSchema(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A schema with a name; it is enforced whatever `strict` says."""

    name: str
    """The schema's name."""
    description: str | None = None
    """The schema's purpose."""
    json_schema: dict[str, Any] | None = msgspec.field(name="schema", default=None)
    """The JSON schema."""
    strict: bool | None = None
    """The schema is enforced whatever this says."""


class JsonSchemaFormat(TaggedFormat, kw_only=True, tag="json_schema"):
    """JSON that follows a schema."""

    json_schema: JsonSchema
    """The schema and its name."""


class StructuralTagFormat(TaggedFormat, kw_only=True, tag="structural_tag"):
    """Text with constrained parts: either `format`, or `structures` and `triggers`."""

    format: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    """The newer format: one description of the whole output."""
    structures: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET
    """Tags, each with a schema of what it holds."""
    triggers: list[str] | msgspec.UnsetType = msgspec.UNSET
    """Texts that begin a tag."""


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuralTagFormat


def read_structured_outputs(
    structured_outputs: StructuredOutputs | None,
    response_format: ResponseFormat | None = None,
    guided: Mapping[str, Any] = {},
) -> StructuredOutputsParams | None:
    """Return the one constraint that all fields together set; `guided` has those of the older fields.

    Raises:
        InvalidRequestError: there are several, one has two values, or one lacks its schema.
    """
    own = {} if structured_outputs is None else msgspec.structs.asdict(structured_outputs)
    given: dict[str, Any] = {}
    for fields in (own, _from_response_format(response_format), guided):
        for name, value in fields.items():
            if value is not None and not _is_same(given.setdefault(name, value), value):
                raise InvalidRequestError(f"structured_outputs.{name}", "given twice", "one constraint")
    if structured_outputs is None and not given:
        return None
    return StructuredOutputsParams.from_mapping(given)


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values are the same JSON: true is not 1, and the order of keys matters."""
    return one is other or msgspec.json.encode(one) == msgspec.json.encode(other)


def _from_response_format(response_format: ResponseFormat | None) -> dict[str, Any]:
    match response_format:
        case JsonObjectFormat():
            return {"json_object": True}
        case JsonSchemaFormat(json_schema=JsonSchema(json_schema=None)):
            raise InvalidRequestError("response_format.json_schema.schema", None, "a JSON schema")
        case JsonSchemaFormat(json_schema=named):
            return {"json": named.json_schema}
        case StructuralTagFormat():
            return {"structural_tag": msgspec.to_builtins(response_format)}
        case _:
            return {}
