"""Limits of the grammars that clients may request, checked before anything is compiled.

Cheap beside any compiler: one pass over the text. Routers and workers check the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

from baton_core.errors import InvalidRequestError
from baton_core.requests.regex_syntax import MAX_ATOMS, RegexError, parse_regex
from baton_core.requests.structured_outputs import StructuredOutputsParams

MAX_DEPTH: Final = 64
"""Deepest nesting of JSON values or of parentheses."""
MAX_PROPERTIES: Final = 256
"""Properties of one object of a schema: compile time grows with their square."""
MAX_CHOICES: Final = 4096
_OPTIONS_KEY: Final = "x-guidance"
"""With it a schema would set options of the compiler, one of which is to ignore what it does not know."""
_PARTS: Final = r"\\.|\[\^?\]?(?:\\.|[^\]\\])*(?:\]|\Z)|\{(?P<low>\d+)(?:,(?P<high>\d*))?\}|."
"""Parts of a grammar: escapes, classes, counts and characters; unclosed ones extend to the end."""
_OF_GRAMMARS: Final = re.compile(rf'"(?:\\.|[^"\\])*(?:"|\Z)|{_PARTS}', re.DOTALL)
"""Texts in quotes besides."""


def check_grammar_limits(params: StructuredOutputsParams) -> None:
    """Refuse a grammar that is larger, deeper or more repetitive than any compiler should get.

    Raises:
        InvalidRequestError: naming the field.
    """
    for text in (params.json, params.regex, params.grammar, params.structural_tag, *params.choice):
        if text is not None:
            _check_text(f"structured_outputs.{params.kind}", text)
    if len(params.choice) > MAX_CHOICES:
        allowed = f"at most {MAX_CHOICES} strings"
        raise InvalidRequestError("structured_outputs.choice", f"{len(params.choice)} strings", allowed)
    if params.regex is not None:
        check_regex("structured_outputs.regex", params.regex)
    if params.grammar is not None:
        check_repetitions("structured_outputs.grammar", params.grammar)
    if params.json is not None:
        read_bounded_json("structured_outputs.json", params.json)
    if params.structural_tag is not None:
        read_bounded_json("structured_outputs.structural_tag", params.structural_tag)


def is_lark(grammar: str) -> bool:
    """Return whether a grammar is in Lark's notation: no line, comments aside, has `::=`.

    Source: vLLM's `grammar_is_likely_lark`.
    """
    return not any("::=" in re.split(r"#|//", line, maxsplit=1)[0] for line in grammar.splitlines())


def read_bounded_json(field: str, text: str) -> Any:
    """Return the value of a JSON text whose depth and whose schemas are within bounds.

    Raises:
        InvalidRequestError: naming the field.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidRequestError(field, text, f"JSON of at most {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise InvalidRequestError(field, text, f"JSON text ({error})") from None
    for part, depth in _walk(value):
        if depth > MAX_DEPTH:
            raise InvalidRequestError(field, f"{depth} levels deep", f"JSON of at most {MAX_DEPTH} levels")
        _check_part(field, part)
    return value


def check_regex(field: str, expression: str) -> None:
    """Refuse what is no expression, or one beyond bounds.

    Raises:
        InvalidRequestError: naming the field and what is wrong.
    """
    try:
        parse_regex(expression)
    except RegexError as error:
        raise InvalidRequestError(field, expression, f"a regular expression ({error})") from None


def check_repetitions(field: str, grammar: str) -> None:
    """Refuse a grammar whose repetitions multiply beyond bounds.

    Syntax is not checked: what is no grammar passes.

    Raises:
        InvalidRequestError: naming the field.
    """
    total, last, groups = 0, 0, list[int]()
    for match in _OF_GRAMMARS.finditer(grammar):
        match match.group():
            case "(":
                groups.append(total)
                if len(groups) > MAX_DEPTH:
                    raise InvalidRequestError(field, grammar, f"at most {MAX_DEPTH} groups in each other")
                total = last = 0
            case ")" if groups:
                last, total = total, groups.pop() + total
            case _ if match["low"] is not None:
                copies = last * max(_limited(match["low"]), _limited(match["high"] or ""), 1)
                total, last = total + copies - last, copies
            case atom if not atom.isspace():
                total, last = total + 1, 1
        if total > MAX_ATOMS:
            allowed = f"at most {MAX_ATOMS} characters once its repetitions are written out"
            raise InvalidRequestError(field, grammar, allowed)


def _check_text(field: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(field, text, f"text that UTF-8 can hold ({error.reason})") from None
    if "\0" in text:
        raise InvalidRequestError(field, text, "text without the character U+0000")


def _check_part(field: str, part: Any) -> None:
    if not isinstance(part, dict):
        if isinstance(part, str):
            _check_text(field, part)
        return
    for key in part:
        _check_text(field, key)
    if _OPTIONS_KEY in part:
        raise InvalidRequestError(field, _OPTIONS_KEY, f"a schema without the key {_OPTIONS_KEY!r}")
    if len(part) > MAX_PROPERTIES:
        raise InvalidRequestError(field, f"{len(part)} keys", f"at most {MAX_PROPERTIES} keys in one object")


def _walk(value: Any) -> Iterator[tuple[Any, int]]:
    """Every value within `value`, itself included, each with its depth."""
    waiting = [(value, 1)]
    while waiting:
        part, depth = waiting.pop()
        yield part, depth
        if isinstance(part, dict | list):
            inner = part.values() if isinstance(part, dict) else part
            waiting.extend((each, depth + 1) for each in inner)


def _limited(digits: str) -> int:
    """Return a count read from digits, limited to a number that is quick to make."""
    return int(digits[:12] or 0)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
