"""Checks structural tags: free text with constrained parts.

In the notation `{"type": "structural_tag", "format": {...}}`, or the older one of structures and triggers.
Source: xgrammar's documentation of structural tags.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from baton_core.errors import InvalidRequestError

CheckContent: TypeAlias = Callable[[str, str, Any], None]
"""Called with the field, `json_schema`, `regex` or `grammar`, and the value; raises InvalidRequestError."""

_STYLES: Final = (
    "json",
    "qwen_xml",
    "minimax_xml",
    "minimax_m3_xml",
    "deepseek_xml",
    "deepseek_v4_1_xml",
    "glm_xml",
    "cohere_xml",
    "kimi_k3_xml",
)
_TAGS: Final = {"tags!": "tags", "at_least_one": "flag", "stop_after_first": "flag"}
_PARTS: Final[Mapping[str, Mapping[str, str]]] = {
    "const_string": {"value!": "text"},
    "json_schema": {
        "json_schema!": "json_schema",
        "style": "style",
        "any_order": "flag",
        "max_whitespace_cnt": "count",
        "excludes": "texts",
    },
    "qwen_xml_parameter": {"json_schema!": "json_schema"},
    "grammar": {"grammar!": "grammar"},
    "regex": {"pattern!": "regex"},
    "any_text": {"excludes": "texts", "max_tokens": "count", "max_chars": "count"},
    "token": {"token!": "token"},
    "exclude_token": {"exclude_tokens": "tokens"},
    "any_tokens": {"exclude_tokens": "tokens", "max_tokens": "count"},
    "sequence": {"elements!": "parts"},
    "or": {"elements!": "parts"},
    "optional": {"content!": "part"},
    "plus": {"content!": "part"},
    "star": {"content!": "part"},
    "repeat": {"min!": "integer", "max!": "integer", "content!": "part"},
    "tag": {"begin!": "mark", "content!": "part", "end!": "marks"},
    "triggered_tags": {"triggers!": "texts", "excludes": "texts", **_TAGS},
    "token_triggered_tags": {"trigger_tokens!": "tokens", "exclude_tokens": "tokens", **_TAGS},
    "tags_with_separator": {"separator!": "text", **_TAGS},
    "dispatch": {"rules!": "rules", "loop": "flag", "excludes": "texts"},
    "token_dispatch": {"rules!": "token_rules", "loop": "flag", "exclude_tokens": "tokens"},
}
"""By the type of a part: what each key holds; a key with `!` has to be there."""


def check_structural_tag(field: str, tag: Any, check_content: CheckContent) -> None:
    """Refuse a structural tag whose parts are not of the notation.

    Raises:
        InvalidRequestError: naming the field and what is wrong.
    """
    checker = _Checker(field, check_content)
    if isinstance(tag, dict) and "structures" in tag:
        checker.check_older(tag)
    elif isinstance(tag, dict) and "format" in tag and tag.get("type", "structural_tag") == "structural_tag":
        checker.check_part(tag["format"])
    else:
        raise InvalidRequestError(field, tag, "an object with 'format', or with 'structures' and 'triggers'")


class _Checker:
    """The checker of one structural tag."""

    def __init__(self, field: str, check_content: CheckContent) -> None:
        self._field = field
        self._check_content = check_content

    def check_older(self, tag: Mapping[str, Any]) -> None:
        structures, triggers = tag["structures"], tag.get("triggers")
        if not (_are_texts(triggers) and triggers and all(triggers)):
            raise self._error(triggers, "'triggers' as a list of non-empty strings")
        if not (isinstance(structures, list) and structures):
            raise self._error(structures, "'structures' as a list with at least one object")
        for structure in structures:
            if not isinstance(structure, dict) or not _are_texts(
                [structure.get("begin"), structure.get("end")]
            ):
                raise self._error(structure, "a structure with the strings 'begin' and 'end', and 'schema'")
            if not structure["begin"].startswith(tuple(triggers)):
                raise self._error(structure["begin"], "a 'begin' that starts with one of the triggers")
            self._check_content(self._field, "json_schema", structure.get("schema", True))

    def check_part(self, part: Any) -> None:
        """Check one part and all within it; their depth is bounded before."""
        has_type = isinstance(part, dict) and isinstance(part.get("type"), str)
        kinds = _PARTS.get(part["type"]) if has_type else None
        if kinds is None:
            raise self._error(part, "an object whose 'type' is one of " + ", ".join(_PARTS))
        for key, kind in kinds.items():
            name = key.removesuffix("!")
            if name in part:
                self._check_value(name, kind, part[name])
            elif name != key:
                raise self._error(part, f"a {part['type']} with {name!r}")
        if unknown := part.keys() - {key.removesuffix("!") for key in kinds} - {"type"}:
            raise self._error(min(unknown), f"keys of a {part['type']}")
        if part["type"] == "triggered_tags":
            self._check_triggers(part)

    def _check_value(self, name: str, kind: str, value: Any) -> None:
        match kind:
            case "json_schema" | "regex" | "grammar":
                if kind != "json_schema" and not (isinstance(value, str) and value):
                    raise self._error(value, f"a non-empty string as {name!r}")
                self._check_content(self._field, kind, value)
            case "part":
                self.check_part(value)
            case "parts" | "tags":
                self._check_parts(name, kind, value)
            case "mark" | "marks" if isinstance(value, dict) and value.get("type") == "token":
                self.check_part(value)
            case "rules" | "token_rules":
                self._check_rules(name, kind, value)
            case _ if not _VALUE_CHECKS[kind](value):
                raise self._error(value, f"{_DESCRIPTIONS[kind]} as {name!r}")

    def _check_parts(self, name: str, kind: str, value: Any) -> None:
        if not (isinstance(value, list) and value):
            raise self._error(value, f"a list with at least one object as {name!r}")
        for part in value:
            if kind == "tags" and isinstance(part, dict):
                part = {"type": "tag", **part}
            self.check_part(part)
            if kind == "tags" and part["type"] != "tag":
                raise self._error(part, "tags")

    def _check_rules(self, name: str, kind: str, value: Any) -> None:
        if not (isinstance(value, list) and all(isinstance(rule, list) and len(rule) == 2 for rule in value)):
            raise self._error(value, f"a list of pairs as {name!r}")
        for mark, part in value:
            self._check_value(name, "text" if kind == "rules" else "token", mark)
            self.check_part(part)

    def _check_triggers(self, part: Mapping[str, Any]) -> None:
        triggers = tuple(part["triggers"])
        for tag in part["tags"]:
            if not (isinstance(tag["begin"], str) and all(triggers) and tag["begin"].startswith(triggers)):
                raise self._error(tag["begin"], "a 'begin' that starts with one of the triggers")

    def _error(self, value: Any, allowed: str) -> InvalidRequestError:
        return InvalidRequestError(self._field, value, allowed)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -1 <= value < 2**31


def _is_token(value: Any) -> bool:
    return _is_integer(value) or isinstance(value, str)


_VALUE_CHECKS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "text": lambda value: isinstance(value, str),
    "texts": _are_texts,
    "flag": lambda value: isinstance(value, bool),
    "integer": _is_integer,
    "count": lambda value: value is None or (_is_integer(value) and value >= 0),
    "token": _is_token,
    "tokens": lambda value: isinstance(value, list) and all(map(_is_token, value)),
    "style": lambda value: value in _STYLES,
    "mark": lambda value: isinstance(value, str),
    "marks": lambda value: isinstance(value, str) or (_are_texts(value) and bool(value)),
}
_DESCRIPTIONS: Final[Mapping[str, str]] = {
    "text": "a string",
    "texts": "a list of strings",
    "flag": "true or false",
    "integer": "an integer of at least -1",
    "count": "an integer of at least 0",
    "token": "a token's id or spelling",
    "tokens": "a list of tokens' ids or spellings",
    "style": "one of " + ", ".join(_STYLES),
    "mark": "a string or a token",
    "marks": "a string, a list of strings, or a token",
}
