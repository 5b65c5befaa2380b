"""Structured outputs of a request: checked at the router, compiled at the workers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from baton_core.errors import InvalidRequestError
from baton_core.requests.closed_schemas import closed_schema

MAX_GRAMMAR_CHARACTERS: Final = 65_536
"""Characters of a schema, a grammar, an expression, or all choices together."""
LIBRARIES: Final = ("xgrammar", "guidance")
"""Libraries that compile grammars."""
KINDS: Final = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_OPTIONS: Final = ("disable_additional_properties", "whitespace_pattern")
"""Options of clients that are no fields: a schema is written out, a pattern refused."""
_FILLED: Final = {"choice": "at least one string", "json_object": "true"}
"""Allowed values of constraints whose empty value is none."""
_NO_PATTERN: Final = (
    "nothing: the compilers of grammars have their own; disable_any_whitespace leaves no blanks"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """Exactly one constraint; names and meanings are vLLM's.

    Raises:
        InvalidRequestError: none or several constraints, or one of the wrong type.
    """

    json: str | None = None
    """A JSON schema as text; a mapping is written as text."""
    regex: str | None = None
    choice: tuple[str, ...] = ()
    grammar: str | None = None
    """EBNF in the notation of GBNF, or Lark's."""
    json_object: bool = False
    """Any JSON object."""
    structural_tag: str | None = None
    """The tag as JSON text; a mapping is written as text."""
    disable_any_whitespace: bool = False
    """JSON without whitespace between its parts."""
    backend: str = ""
    """The library that compiles it, chosen where the request is accepted; empty before that."""

    def __post_init__(self) -> None:
        for name in ("json", "structural_tag"):
            object.__setattr__(self, name, _as_text(f"structured_outputs.{name}", getattr(self, name)))
        object.__setattr__(self, "choice", _as_choices(self.choice))
        for name in ("json_object", "disable_any_whitespace"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequestError(f"structured_outputs.{name}", getattr(self, name), "true or false")
        for name in ("regex", "grammar"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                raise InvalidRequestError(f"structured_outputs.{name}", value, "a non-empty string")
        if self.backend and self.backend not in LIBRARIES:
            raise InvalidRequestError("structured_outputs.backend", self.backend, ", ".join(LIBRARIES))
        given = [name for name in KINDS if getattr(self, name)]
        if len(given) != 1:
            raise InvalidRequestError(
                "structured_outputs", " and ".join(given) or None, "exactly one of " + ", ".join(KINDS)
            )
        if self.num_characters > MAX_GRAMMAR_CHARACTERS:
            allowed = f"at most {MAX_GRAMMAR_CHARACTERS} characters"
            raise InvalidRequestError(f"structured_outputs.{given[0]}", f"{self.num_characters}", allowed)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> StructuredOutputsParams:
        """Make one of a client's object, which names no library and may have further options.

        Raises:
            InvalidRequestError: a key is unknown or a value wrong.
        """
        known = {field.name for field in fields(cls)} - {"backend"}
        given = {key: value for key, value in values.items() if key not in _OPTIONS}
        for key in given:
            if key not in known:
                raise InvalidRequestError("structured_outputs", key, ", ".join(sorted(known)))
        if (pattern := values.get("whitespace_pattern")) is not None:
            raise InvalidRequestError("structured_outputs.whitespace_pattern", pattern, _NO_PATTERN)
        is_closed = values.get("disable_additional_properties", False)
        if not isinstance(is_closed, bool):
            name = "structured_outputs.disable_additional_properties"
            raise InvalidRequestError(name, is_closed, "true or false")
        if is_closed and given.get("json") is not None:
            given["json"] = _closed(given["json"])
        kinds = [name for name in KINDS if given.get(name) is not None]
        for name, allowed in _FILLED.items():
            if kinds == [name] and not given[name]:
                raise InvalidRequestError(f"structured_outputs.{name}", given[name], allowed)
        return cls(**given)

    @property
    def kind(self) -> str:
        """The one of `KINDS` that is set."""
        return next(name for name in KINDS if getattr(self, name))

    @property
    def num_characters(self) -> int:
        texts = (self.json, self.regex, self.grammar, self.structural_tag, *self.choice)
        return sum(len(text) for text in texts if text)


def _as_text(field: str, value: object) -> str | None:
    if value is None or (isinstance(value, str) and value):
        return value
    if isinstance(value, Mapping):
        try:
            return json.dumps(value, sort_keys=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequestError(field, value, f"what JSON can hold ({error})") from None
    raise InvalidRequestError(field, value, "an object, or one as JSON text")


def _closed(schema: object) -> Any:
    text = _as_text("structured_outputs.json", schema)
    try:
        return closed_schema(json.loads(text or ""))
    except (ValueError, RecursionError):
        return text  # which the checks of grammars refuse


def _as_choices(value: object) -> tuple[str, ...]:
    field = "structured_outputs.choice"
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidRequestError(field, value, "a list of strings")
    choices = tuple(value)
    if not all(isinstance(choice, str) and choice for choice in choices):
        raise InvalidRequestError(field, choices, "non-empty strings")
    return choices
