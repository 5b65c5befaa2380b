"""Grammars as llguidance reads them: JSON text of a list of grammars in Lark's notation.

The router validates exactly what the workers compile.
Source: github.com/guidance-ai/llguidance, docs/syntax.md and docs/json_schema.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from baton_core.errors import InvalidRequestError
from baton_core.requests.exclusive_options import with_exclusive_options
from baton_core.requests.expression_writers import rust_regex
from baton_core.requests.regex_syntax import parse_regex
from baton_core.requests.schema_numbers import narrow_to_guidance
from baton_core.requests.schema_patterns import rewritten, with_plain_patterns
from baton_core.requests.structured_outputs import StructuredOutputsParams

_OPTIONS: Final = '%llguidance {"no_forcing": true}'
"""Lets all tokens that fit a forced text be sampled, not the longest alone."""
_ADVICE: Final = re.compile(r" Enable '\w+' option.*")
_OF_SCHEMA: Final = re.compile(r"at 2\(8\): failed to compile JSON schema: (.*?)(?:\n   1 \| |\Z)", re.DOTALL)
"""Begins messages about a schema that is a whole source; the lines behind repeat that."""
_ANY_TEXT: Final = "/(?s:.*)/"
_NAMING_REFERENCE: Final = re.compile(r'"\$(?:dynamicRef|recursiveRef|ref)": "[^#]')
"""References other than pointers, which may mean a schema by its name."""


def guidance_source(params: StructuredOutputsParams) -> str:
    """Return the source of a structured output; a grammar has to be in Lark's notation.

    Raises:
        InvalidRequestError: a structural tag has a part that llguidance has no words for.
        ValueError, TypeError, KeyError: it is no structural tag, or an expression in it is wrong.
    """
    is_compact = params.disable_any_whitespace
    match params.kind:
        case "json":
            return schema_source(json.loads(params.json or ""), is_compact=is_compact)
        case "json_object":
            return schema_source({"type": "object"}, is_compact=is_compact)
        case "regex":
            return regex_source(params.regex or "")
        case "choice":
            return lark_source("start: " + " | ".join(map(json.dumps, params.choice)))
        case "grammar":
            return lark_source(params.grammar or "")
    return _TagWriter(is_compact=is_compact).write_all(json.loads(params.structural_tag or ""))


def plain_reason(message: str) -> str:
    """Return what llguidance says is wrong in one line, without advice to set options that no request has."""
    if (found := _OF_SCHEMA.match(message)) is not None:
        message = found[1]
    lines = (_ADVICE.sub("", line).strip() for line in message.splitlines())
    return "; ".join(filter(None, lines))[:300]


def schema_source(schema: Any, *, is_compact: bool = False) -> str:
    """Return the source of one schema, given as its value.

    Raises:
        ValueError: a pattern in it is wrong, or a number is less than llguidance can read.
    """
    return lark_source(f"start: {_json(schema, is_compact=is_compact)}")


def regex_source(pattern: str) -> str:
    """Return the source of one expression.

    Raises:
        RegexError: it is wrong.
    """
    return lark_source(f"start: {_regex(pattern)}")


def lark_source(grammar: str, *inner: dict[str, str]) -> str:
    """Return the source of a grammar in Lark's notation and of those that it names."""
    options = "" if "%llguidance" in grammar else f"{_OPTIONS}\n"
    return json.dumps({"grammars": [{"lark_grammar": options + grammar}, *inner]})


def _json(schema: Any, *, is_compact: bool) -> str:
    """The words for a JSON value; a schema that is no object or bool makes words that are refused."""
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    if isinstance(schema, dict):
        schema = {
            **rewritten(with_plain_patterns(with_exclusive_options(_named(schema))), narrow_to_guidance),
            "x-guidance": {"whitespace_flexible": not is_compact, "lenient": False},
        }
    return f"%json {json.dumps(schema)}"


def _named(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without a name that no reference in it means: it need not be a URI then."""
    if "$id" not in schema or _NAMING_REFERENCE.search(json.dumps(schema)):
        return schema
    return {keyword: value for keyword, value in schema.items() if keyword != "$id"}


def _regex(pattern: str) -> str:
    """The expression between slashes."""
    return f"/{rust_regex(parse_regex(pattern))}/"


class _TagWriter:
    """Writes a structural tag, one rule for each part."""

    def __init__(self, *, is_compact: bool) -> None:
        self._is_compact = is_compact
        self._rules: list[str] = []
        self._inner: list[dict[str, str]] = []

    def write_all(self, tag: dict[str, Any]) -> str:
        if "structures" in tag:
            whole = self._triggered(tag["triggers"], [_older(each) for each in tag["structures"]])
        else:
            whole = self._part(tag["format"])
        return lark_source("\n".join([f"start: {whole}", *self._rules]), *self._inner)

    def _part(self, part: dict[str, Any]) -> str:
        """Return an expression for one part."""
        match part["type"]:
            case "const_string":
                return json.dumps(part["value"])
            case "json_schema":
                return self._schema(part)
            case "regex":
                return self._rule(_regex(part["pattern"]))
            case "grammar":
                return self._grammar(part["grammar"])
            case "any_text" if _is_unlimited(part):
                return self._rule(_ANY_TEXT)
            case "sequence":
                return self._sequence(part["elements"])
            case "or":
                return self._rule(" | ".join(map(self._part, part["elements"])))
            case "optional" | "plus" | "star" as kind:
                sign = {"optional": "?", "plus": "+", "star": "*"}[kind]
                return self._rule(f"({self._part(part['content'])}){sign}")
            case "tag":
                return self._tag(part, part["begin"])
            case "triggered_tags" if not _has_options(part):
                return self._triggered(part["triggers"], part["tags"])
        raise _cannot_say(part)

    def _schema(self, part: dict[str, Any]) -> str:
        if part.get("style", "json") != "json" or part.get("any_order") or part.get("excludes"):
            raise _cannot_say(part)
        if part.get("max_whitespace_cnt") not in (None, 0):
            raise _cannot_say(part)
        is_compact = self._is_compact or part.get("max_whitespace_cnt") == 0
        return self._rule(_json(part["json_schema"], is_compact=is_compact))

    def _grammar(self, grammar: str) -> str:
        if "::=" in grammar:
            raise InvalidRequestError("structured_outputs.structural_tag", grammar, "Lark's notation")
        name = f"inner_{len(self._inner)}"
        self._inner.append({"name": name, "lark_grammar": grammar})
        return f"@{name}"

    def _sequence(self, elements: Sequence[dict[str, Any]]) -> str:
        """Return free text that ends only where the whole output does."""
        for element in elements[:-1]:
            if element["type"] in ("any_text", "triggered_tags"):
                raise _cannot_say(element)
        return self._rule(" ".join(map(self._part, elements)))

    def _tag(self, tag: dict[str, Any], begin: Any) -> str:
        """`begin` is what of the tag's beginning is still to come."""
        ends = tag["end"] if isinstance(tag["end"], list) else [tag["end"]]
        if not all(isinstance(text, str) for text in (begin, *ends)):
            raise _cannot_say(tag)
        end = "(" + " | ".join(map(json.dumps, ends)) + ")"
        content = tag["content"]
        if content["type"] == "any_text" and _is_unlimited(content) and any(ends):
            return self._rule(f"{json.dumps(begin)} {self._rule(f'{_ANY_TEXT} {end}', options='[lazy]')}")
        return self._rule(f"{json.dumps(begin)} {self._part(content)} {end}")

    def _triggered(self, triggers: Sequence[str], tags: Sequence[dict[str, Any]]) -> str:
        """Free text in which a trigger is followed by the rest of its tag."""
        options = []
        for trigger in triggers:
            start = self._rule(f"{_ANY_TEXT} {json.dumps(trigger)}", options="[lazy]")
            started = [
                tag for tag in tags if isinstance(tag["begin"], str) and tag["begin"].startswith(trigger)
            ]
            if started:
                rests = (self._tag(tag, tag["begin"].removeprefix(trigger)) for tag in started)
                options.append(f"{start} ({' | '.join(rests)})")
        if not options:
            raise ValueError("no trigger begins a tag")
        return self._rule(f"({self._rule(' | '.join(options))})* {self._rule(_ANY_TEXT)}")

    def _rule(self, body: str, options: str = "") -> str:
        name = f"rule_{len(self._rules)}"
        self._rules.append(f"{name}{options}: {body}")
        return name


def _older(structure: dict[str, Any]) -> dict[str, Any]:
    """A structure of the older notation as a tag."""
    schema = structure.get("schema", True)
    schema = json.loads(schema) if isinstance(schema, str) else schema
    return {**structure, "type": "tag", "content": {"type": "json_schema", "json_schema": schema}}


def _is_unlimited(any_text: dict[str, Any]) -> bool:
    return not any_text.keys() & {"excludes", "max_tokens", "max_chars"}


def _has_options(part: dict[str, Any]) -> bool:
    return any(part.get(key) for key in ("at_least_one", "stop_after_first", "excludes"))


def _cannot_say(part: dict[str, Any]) -> InvalidRequestError:
    allowed = f"what llguidance has words for, which this {part['type']!r} is not"
    return InvalidRequestError("structured_outputs.structural_tag", part, allowed)
