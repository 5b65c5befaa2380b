"""Names of layers that a checkpoint leaves unquantized, in the ways in which checkpoints write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

import regex

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.config_fields import ConfigFields

_MAX_PATTERNS: Final = 65_536
_MAX_CHARACTERS: Final = 1_024
_MATCH_WITHIN_S: Final = 1.0


def read_names(fields: ConfigFields, *keys: str) -> tuple[str, ...]:
    """Return the texts of the first of `keys` that is there; an absent one is empty.

    Raises:
        InvalidModelError: it is not a list of texts, or beyond any model's size.
    """
    for key in keys:
        value = fields.raw(key)
        if value is None:
            continue
        is_list = isinstance(value, list) and len(value) <= _MAX_PATTERNS
        if not is_list or any(not isinstance(one, str) or len(one) > _MAX_CHARACTERS for one in value):
            raise fields.refuse(key, value, f"a list of at most {_MAX_PATTERNS} names of layers")
        return tuple(value)
    return ()


def is_within(name: str, layers: Sequence[str]) -> bool:
    """Say whether a layer is one of `layers` or inside one of these modules."""
    return any(name == layer or name.startswith(f"{layer}.") for layer in layers)


def contains(name: str, parts: Sequence[str]) -> bool:
    """Say whether one of `parts` occurs in the name of a layer."""
    return any(part in name for part in parts)


def matches_glob(name: str, patterns: Sequence[str]) -> bool:
    """Say whether a layer's name matches one of `patterns`, where `*` is any text."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamePattern:
    """A regular expression of a config.json, for layers' names."""

    key: str
    """The field that has it."""
    expression: regex.Pattern[str]

    def matches(self, name: str) -> bool:
        """Say whether a layer's name begins with a match.

        Raises:
            InvalidModelError: that takes longer than any expression for names does.
        """
        return self._finds(self.expression.match, name)

    def occurs_in(self, name: str) -> bool:
        """Say whether there is a match anywhere in a layer's name.

        Raises:
            InvalidModelError: as `matches`.
        """
        return self._finds(self.expression.search, name)

    def _finds(self, find: Callable[..., object], name: str) -> bool:
        try:
            return find(name, timeout=_MATCH_WITHIN_S) is not None
        except TimeoutError:
            text = (
                f"{self.key} holds {self.expression.pattern!r:.200}, which takes over {_MATCH_WITHIN_S:g} s"
            )
            raise InvalidModelError(f"{text} for {name}; allowed: expressions without backtracking") from None


def compile_regex(fields: ConfigFields, key: str, pattern: str) -> NamePattern:
    """Return a regular expression of a config.json.

    Raises:
        InvalidModelError: it is none.
    """
    try:
        return NamePattern(key=key, expression=regex.compile(pattern))
    except (regex.error, RecursionError, OverflowError):
        raise fields.refuse(key, pattern, "a regular expression") from None
