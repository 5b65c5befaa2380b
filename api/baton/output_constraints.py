"""Constraints on an output as callers write them, under the names of vLLM's classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baton_core.requests import repetition, structured_outputs


@dataclass
class StructuredOutputsParams:
    """Exactly one constraint on an output, and how JSON is written.

    Raises:
        InvalidRequestError: none or several constraints, or one of the wrong type.
    """

    json: str | Mapping[str, Any] | None = None
    """A JSON schema, as an object or as text."""
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    """EBNF in the notation of GBNF, or Lark's."""
    json_object: bool | None = None
    """Any JSON object."""
    disable_any_whitespace: bool = False
    """JSON without whitespace between its parts."""
    disable_additional_properties: bool = False
    """Objects have only the properties that the schema names, unless it says otherwise."""
    whitespace_pattern: str | None = None
    """None: the libraries that compile grammars have their own; `disable_any_whitespace` leaves none."""
    structural_tag: str | Mapping[str, Any] | None = None
    """A structural tag, as an object or as text."""

    def __post_init__(self) -> None:
        self.frozen()

    def frozen(self) -> structured_outputs.StructuredOutputsParams:
        """Return the value that requests work on.

        Raises:
            InvalidRequestError: as for the class.
        """
        given = {name: value for name, value in vars(self).items() if value is not None}
        return structured_outputs.StructuredOutputsParams.from_mapping(given)

    def all_constraints_none(self) -> bool:
        """Return whether no constraint is set."""
        return self.all_non_structural_tag_constraints_none() and self.structural_tag is None

    def all_non_structural_tag_constraints_none(self) -> bool:
        """Return whether no constraint but a structural tag is set."""
        others = (kind for kind in structured_outputs.KINDS if kind != "structural_tag")
        return all(getattr(self, kind) is None for kind in others)


@dataclass
class RepetitionDetectionParams:
    """End a sequence whose last tokens are one pattern, several times.

    Raises:
        InvalidRequestError: a value is out of range.
    """

    max_pattern_size: int = 0
    """Longest pattern to look for, in tokens; 0 looks for none."""
    min_pattern_size: int = 0
    """Shortest pattern; 0 is 1."""
    min_count: int = 0
    """Repetitions of the pattern that end the sequence; 2 or more."""

    def __post_init__(self) -> None:
        self.frozen()

    def frozen(self) -> repetition.RepetitionDetectionParams:
        """Return the value that requests work on.

        Raises:
            InvalidRequestError: a value is out of range.
        """
        return repetition.RepetitionDetectionParams(**vars(self))
