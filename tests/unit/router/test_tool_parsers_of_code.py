"""Formats whose calls are tags or Python, cut into pieces of every size, and malformed."""

from __future__ import annotations

import json

import pytest

from baton_router.output_parsing.output_parser import ParsedOutput, ToolCallDelta, collect
from tests.unit.router.output_parsers import TYPED, calls, content, make_parser, parse

# --- Qwen3-Coder ---


def coder_call(**values: str) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function=f>\n{parameters}</function>\n</tool_call>"


@pytest.mark.parametrize("name", ["qwen3_coder", "qwen3_xml"])
def test_a_qwen3_coder_call_becomes_json(name: str) -> None:
    text = "I will.\n" + coder_call(text='def f():\n\treturn "<b>"\n', count="3") + "\n" + coder_call()
    answer = parse(name, text, (TYPED,))
    assert answer.content == "I will.\n"
    assert answer.tool_calls == calls(
        ("f", '{"text": "def f():\\n\\treturn \\"<b>\\"\\n", "count": 3}'), ("f", "{}")
    )


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("text", "42", "42"),
        ("text", "null", "null"),
        ("unknown", "42", "42"),
        ("count", "42", 42),
        ("count", "-7", -7),
        ("count", "many", "many"),
        ("count", "1.5", "1.5"),
        ("count", "true", "true"),
        ("count", "9" * 5000, "9" * 5000),
        ("ratio", "2", 2),
        ("ratio", "2.5e3", 2500.0),
        ("ratio", "NaN", "NaN"),
        ("flag", "true", True),
        ("flag", "False", False),
        ("flag", "TRUE", True),
        ("items", '[1, {"a": "b"}]', [1, {"a": "b"}]),
        ("items", "[1, ('a', None)]", [1, ["a", None]]),
        ("items", "[" * 100_000, "[" * 100_000),
        ("items", "-" * 100_000, "-" * 100_000),
        ("point", '{"x": 1}', {"x": 1}),
        ("point", "{'x': True}", {"x": True}),
        ("loop", "5", "5"),
        ("maybe", "null", None),
        ("maybe", "None", None),
        ("maybe", '"quoted"', '"quoted"'),
        ("either", "null", None),
        ("either", "5", 5),
        ("level", "2", 2),
        ("level", "high", "high"),
        ("three", "3", 3),
    ],
)
def test_a_qwen3_coder_value_has_the_type_that_the_schema_says(
    key: str, value: str, expected: object
) -> None:
    parser = make_parser("qwen3_coder", (TYPED,))
    answer = collect([*parser.push(coder_call(**{key: value})), *parser.flush()])
    assert json.loads(answer.tool_calls[0].arguments) == {key: expected}
    assert answer.content is None


def test_strings_of_a_qwen3_coder_call_stream() -> None:
    parser = make_parser("qwen3_coder", (TYPED,))
    parser.push("<tool_call><function=f><parameter=text>\n")
    assert parser.push("a\n") == [ToolCallDelta(index=0, arguments="a")]
    assert parser.push("b") == [ToolCallDelta(index=0, arguments="\\nb")]


@pytest.mark.parametrize(
    "text",
    [
        "<function=f>\n<parameter=count>\n1\n</parameter>\n</function>",
        "<tool_call><function=f><parameter=count>1</parameter></function>",
        "<tool_call>\n<function=f>\n<parameter=count>\n1\n</parameter>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=count>\n1\n</function>\n</tool_call>",
        "<tool_call><function=f><parameter=count>1</tool_call>",
    ],
)
def test_a_qwen3_coder_call_may_lack_a_tag(text: str) -> None:
    answer = parse("qwen3_coder", text, (TYPED,))
    assert answer == ParsedOutput(content=None, reasoning=None, tool_calls=calls(("f", '{"count": 1}')))


def test_a_qwen3_coder_value_ends_where_the_next_one_begins() -> None:
    text = "<function=f>\n<parameter=text>\na\n\n<parameter=count>\n1<parameter=ratio>2\n</function>"
    (call,) = parse("qwen3_coder", text, (TYPED,)).tool_calls
    assert call.arguments == '{"text": "a\\n", "count": 1, "ratio": 2}'


@pytest.mark.parametrize(
    "text", ["<tool_call>", "<tool_call>{}", "<tool_call><function=", "<function=>", "<function=a\nb>", "<f"]
)
def test_what_is_no_qwen3_coder_call_is_content(text: str) -> None:
    assert parse("qwen3_coder", text) == content(text)


@pytest.mark.parametrize(
    ("text", "arguments", "rest"),
    [
        ("<parameter=count>1</parameter>", '{"count": 1}', None),
        ("<parameter=count>1</parameter>oops", '{"count": 1}', "oops"),
        ("<parameter=text>a</parameter>\n<parameter=cou", '{"text": "a"}', None),
        ("<parameter=a\nb>", "{}", "<parameter=a\nb>"),
        ("\n", "{}", None),
        ("oops", "{}", "oops"),
    ],
)
def test_a_qwen3_coder_call_that_breaks_off_between_values_is_closed(
    text: str, arguments: str, rest: str | None
) -> None:
    answer = parse("qwen3_coder", f"<function=f>{text}", (TYPED,))
    assert answer == ParsedOutput(content=rest, reasoning=None, tool_calls=calls(("f", arguments)))


def test_a_call_may_follow_a_qwen3_coder_call_that_breaks_off() -> None:
    answer = parse("qwen3_coder", "<function=f>\n<function=g>\n</function>", (TYPED,))
    assert answer.tool_calls == calls(("f", "{}"), ("g", "{}"))
    assert answer.content is None


def test_a_qwen3_coder_call_that_breaks_off_in_a_value_stays_open() -> None:
    answer = parse("qwen3_coder", "<function=f><parameter=count>\n12", (TYPED,))
    assert answer == ParsedOutput(content=None, reasoning=None, tool_calls=calls(("f", '{"count": 12')))
    assert parse("qwen3_coder", "<function=f><parameter=text>a", (TYPED,)).tool_calls == calls(
        ("f", '{"text": "a')
    )


# --- Python ---


def test_pythonic_calls_become_json() -> None:
    text = """[get_weather(city="Pa'r[is", days=-2), a.b(x=[1, (2.5,)], y={'k': True}, z=null), g()]"""
    assert parse("pythonic", text) == ParsedOutput(
        content=None,
        reasoning=None,
        tool_calls=calls(
            ("get_weather", '{"city": "Pa\'r[is", "days": -2}'),
            ("a.b", '{"x": [1, [2.5]], "y": {"k": true}, "z": null}'),
            ("g", "{}"),
        ),
    )


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        (r"'it\'s'", "it's"),
        (r"'\d'", "\\d"),
        ("''", ""),
        ('""" " "" ) """', ' " "" ) '),
        ("'''a\nb'''", "a\nb"),
        ("'a' 'b'", "ab"),
        (r"r'\n)'", "\\n)"),
        ("true", True),
        ("0x10", 16),
    ],
)
def test_pythonic_literals(literal: str, value: object) -> None:
    (call,) = parse("pythonic", f"[f(a={literal})]").tool_calls
    assert json.loads(call.arguments) == {"a": value}


@pytest.mark.parametrize(
    "text",
    [
        "Hello",
        "[1] says so",
        "[link](url)",
        "[]",
        "[f",
        "[f(a=1",
        "[f(a=')",
        "[f(1)]",
        "[f(**{'a': 1})]",
        "[f(a=g())]",
        "[f(a=b)]",
        "[f(a=1+1)]",
        "[f(a=__import__('os').system('true'))]",
        "[f(a=f'{1}')]",
        "[f(a=b'x')]",
        "[f(a={1: 2})]",
        "[f(a={**{}})]",
        "[f(a=1e999)]",
        "[f(a=1 if True else 2)]",
        "[f(a=\x00)]",
        f"[f(a={'[' * 10_000}{']' * 10_000})]",
        f"[f(a={'-' * 10_000}1)]",
        f"[f(a={'1+' * 10_000}1)]",
        f"[f(a={'9' * 5000})]",
    ],
)
def test_what_is_no_pythonic_call_is_content(text: str) -> None:
    parser = make_parser("pythonic")
    assert collect([*parser.push(text), *parser.flush()]) == content(text)


def test_what_follows_a_pythonic_call_is_content() -> None:
    answer = parse("pythonic", "[f(a=1)] Good?")
    assert answer == ParsedOutput(content=" Good?", reasoning=None, tool_calls=calls(("f", '{"a": 1}')))
    answer = parse("pythonic", "[f(a=1), g(2)]")
    assert answer == ParsedOutput(content=", g(2)]", reasoning=None, tool_calls=calls(("f", '{"a": 1}')))
