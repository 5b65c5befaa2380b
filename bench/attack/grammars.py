"""Attacks by structured outputs and chat templates that are slow, wide, or read in two ways."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import jsonschema

from bench.attack.targets import Attack, Target, at_once

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"
REFUSALS: Final = frozenset({0, 400, 429, 503, 504})
"""Statuses that say honestly that there is no answer; 0 is a connection without one."""
REGEXES: Final = (
    (r"[\^0-9]{6}", r"[\^0-9]{6}"),
    (r"(x|[\^+*/-])[0-9]", r"(x|[\^+*/-])[0-9]"),
    (r"[\p{L}]{5}", r"[^\W\d_]{5}"),
    (r"\Afoo\z", r"foo"),
    (r"[^]a]{3}", r"[^]a]{3}"),
    (r"[a-c&&b]{4}", r"[a-c&b]{4}"),
    (r"^[ab]{3}$", r"[ab]{3}"),
    (r"\d{3}", r"\d{3}"),
    (r"(?i)abc", r"(?i)abc"),
    (r"a|bc|", r"a|bc|"),
    (r"[\w-]{2}", r"[\w-]{2}"),
    (r".{3}", r".{3}"),
)
"""Expressions, and what judges the output: the same for Python's re."""
SCHEMAS: Final[tuple[dict[str, Any], ...]] = (
    {"type": "integer", "minimum": 3, "maximum": 12},
    {"type": "string", "pattern": "^[ab]{2,4}$"},
    {"type": "string", "minLength": 2, "maxLength": 4},
    {"enum": ["a", 1, None, {"b": []}]},
    {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"type": "null"}, "minItems": 2, "maxItems": 3},
    {"anyOf": [{"const": "x"}, {"type": "integer", "minimum": 10, "maximum": 99}]},
    {"$ref": "#"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    {"type": "array", "minItems": 10**9},
    {"type": "string", "minLength": 100_000},
    {"type": "object", "patternProperties": {"^(a|aa)+$": {}}, "minProperties": 50},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    {"not": {}},
    {"type": "robot"},
)
TEMPLATES: Final = (
    "{{ 'a' * 10**9 }}",
    "{{ 'a'.center(2900000000) }}",
    "{{ 7 ** 7 ** 7 ** 7 }}",
    "{% set x = namespace(v=3) %}{% for i in range(99) %}{% set x.v = x.v * x.v %}{% endfor %}",
    "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    "{{ ('ab' * 4000000) | sort | length }}",
    "{{ ('ab' * 4000000) | batch(1) | list | length }}",
    "{{ messages | tojson | replace('', 'x' * 100000) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '{:>1000000000}'.format(1) }}",
    "{{ cycler.__init__.__globals__ }}",
    "{% include '/etc/passwd' %}",
    "{{ [0] * 100000000 }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
)


async def slow_grammars(target: Target) -> None:
    """Send grammars that take long to compile, each a different one."""
    nonce = target.rng.randrange(10**6)

    def make_grammar(number: int) -> dict[str, Any]:
        word = f"x{nonce}y{number}"
        match number % 3:
            case 0:  # small, ambiguous, and minutes of work for xgrammar
                rules = (
                    f'r{i} ::= r{(i + 1) % 300} r{(5 * i + 2) % 300} | [a-z]+ | "{word}" r{(9 * i + 4) % 300}'
                    for i in range(300)
                )
                return {"grammar": "\n".join(("root ::= r0", *rules))}
            case 1:
                return {"regex": f"{word}(([a-z]*[0-9]*){{1,30}}){{1,400}}"}
            case _:
                names = {f"{word}{key}": {"type": "string", "maxLength": 200 + key} for key in range(250)}
                return {"json": {"type": "object", "properties": names}}

    async with target.session() as session:

        async def one(number: int) -> None:
            body = {"prompt": "The os", "max_tokens": 2, "structured_outputs": make_grammar(number)}
            await target.post(session, COMPLETIONS, body)

        await at_once(24, one)


async def regexes(target: Target) -> None:
    async with target.session() as session:

        async def one(number: int) -> None:
            expression, judge = REGEXES[number]
            form = {"structured_outputs": {"regex": expression}}
            body = {"prompt": "The os", "max_tokens": 60, "temperature": 1.0, "n": 4, **form}
            status, answer = await target.ask(session, COMPLETIONS, body)
            if status in REFUSALS:
                return
            if status != 200:
                target.wrong(f"{expression} is answered with {status}")
                return
            for choice in answer["choices"]:
                is_whole = choice["finish_reason"] == "stop"
                if is_whole and not re.fullmatch(judge, choice["text"], re.DOTALL):
                    target.wrong(f"{expression} gives {choice['text']!r}")

        await at_once(len(REGEXES), one)


async def conflicts(target: Target) -> None:
    """Ask for a grammar and tokens that none of its outputs has: nothing may pass as a whole answer."""
    grammar: dict[str, Any] = {"structured_outputs": {"regex": "[0-9]{3}"}}
    letters = {"The os module": grammar, "import": {**grammar, "min_tokens": 20}}
    async with target.session() as session:
        status, tokens = await target.ask(session, "/tokenize", {"prompt": " the module is a"})
        if status != 200:
            return
        for prompt, fields in letters.items():
            body = {"prompt": prompt, "max_tokens": 30, "allowed_token_ids": tokens["tokens"], **fields}
            status, answer = await target.ask(session, COMPLETIONS, body)
            for choice in answer["choices"] if status == 200 else ():
                if choice["finish_reason"] == "stop" and not re.fullmatch("[0-9]{3}", choice["text"]):
                    target.wrong(f"digits of letters alone: {choice['text']!r} as a whole answer")


async def schemas(target: Target) -> None:
    async with target.session() as session:

        async def one(number: int) -> None:
            form = {"structured_outputs": {"json": SCHEMAS[number]}}
            body = {"prompt": "The os", "max_tokens": 200, "temperature": 1.0, "n": 2, **form}
            status, answer = await target.ask(session, COMPLETIONS, body)
            if status in REFUSALS:
                return
            if status != 200:
                target.wrong(f"{json.dumps(SCHEMAS[number])} is answered with {status}")
                return
            for choice in answer["choices"]:
                if choice["finish_reason"] == "stop" and not _is_valid(choice["text"], SCHEMAS[number]):
                    target.wrong(f"{json.dumps(SCHEMAS[number])} gives {choice['text']!r}")

        await at_once(len(SCHEMAS), one)


def _is_valid(text: str, schema: dict[str, Any]) -> bool:
    try:
        jsonschema.validate(json.loads(text), schema)
    except (jsonschema.ValidationError, json.JSONDecodeError):
        return False
    return True


async def templates(target: Target) -> None:
    async with target.session() as session:

        async def one(number: int) -> None:
            body = {
                "messages": [{"role": "user", "content": "os"}],
                "max_tokens": 1,
                "chat_template": TEMPLATES[number],
            }
            status, answer = await target.ask(session, CHAT, body)
            if status not in REFUSALS and status != 200:
                target.wrong(f"{TEMPLATES[number]} is answered with {status}: {answer}")

        await at_once(len(TEMPLATES), one)


GRAMMARS: Final = tuple(
    Attack(name=name, what=what, run=run, has_key=True)
    for name, what, run in (
        ("slow-grammars", "24 grammars that take long to compile", slow_grammars),
        ("regexes", "expressions that engines read differently; outputs are matched", regexes),
        ("conflicts", "grammars together with tokens that no output of theirs has", conflicts),
        ("schemas", "schemas that are odd, recursive or impossible; outputs are validated", schemas),
        ("templates", "chat templates that compute for ever, take all memory or read files", templates),
    )
)
