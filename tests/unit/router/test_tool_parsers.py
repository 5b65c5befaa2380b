"""Formats whose calls are JSON, as models write them, cut into pieces of every size, and malformed."""

from __future__ import annotations

import time

import pytest

from baton_router.output_parsing.output_parser import ParsedOutput, TextDelta, ToolCallDelta
from tests.unit.router.output_parsers import ARGUMENTS, CALL, TYPED, calls, content, make_parser, parse

# --- Hermes, Qwen3 ---


@pytest.mark.parametrize("name", ["hermes", "qwen3"])
def test_a_hermes_call_is_taken_out_of_the_content(name: str) -> None:
    answer = parse(name, f"Let me look.\n<tool_call>\n{CALL}\n</tool_call>")
    assert answer == ParsedOutput(
        content="Let me look.\n", reasoning=None, tool_calls=calls(("get_weather", ARGUMENTS))
    )


def test_hermes_calls_follow_each_other_and_the_line_breaks_between_them_are_no_content() -> None:
    answer = parse("hermes", f"\n\n<tool_call>\n{CALL}\n</tool_call>\n<tool_call>{CALL}</tool_call>\n")
    assert answer == ParsedOutput(
        content=None, reasoning=None, tool_calls=calls(("get_weather", ARGUMENTS), ("get_weather", ARGUMENTS))
    )


def test_content_may_follow_a_hermes_call() -> None:
    answer = parse("hermes", f"<tool_call>{CALL}</tool_call>\n\nDone.")
    assert answer.content == "\n\nDone."
    assert len(answer.tool_calls) == 1


@pytest.mark.parametrize("end", ["", "\n", "</tool", "\n</tool_call"])
def test_a_hermes_call_without_its_end_tag_is_one(end: str) -> None:
    answer = parse("hermes", f"<tool_call>{CALL}{end}")
    assert answer == ParsedOutput(content=None, reasoning=None, tool_calls=calls(("get_weather", ARGUMENTS)))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}</tool_call>\n<tool_call>\n{"name": "g", "arg'),
        ("llama3_json", '{"name": "f", "parameters": {}};'),
        ("llama3_json", '{"name": "f", "parameters": {}}; {"name": "g", '),
        ("mistral", "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[AR"),
        ("pythonic", '[f(), g(s="b'),
        ("qwen3_coder", "<function=f></function></tool_call>\n<tool_call>\n<function=g"),
        ("qwen3_coder", "<function=f><parameter=count>\n"),
    ],
)
def test_syntax_of_a_call_that_breaks_off_beside_others_is_no_content(name: str, text: str) -> None:
    assert parse(name, text, (TYPED,)) == ParsedOutput(
        content=None, reasoning=None, tool_calls=calls(("f", "{}"))
    )


def test_what_may_begin_a_call_is_content_after_others_too() -> None:
    answer = parse("hermes", f"<tool_call>{CALL}</tool_call>a <")
    assert answer.content == "a <"


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_hermes_call_without_its_last_brace_is_one(end: str) -> None:
    answer = parse("hermes", f"<tool_call>{CALL[:-1]}{end}</tool_call>\n<tool_call>{CALL}</tool_call>")
    assert answer == ParsedOutput(
        content=None, reasoning=None, tool_calls=calls(("get_weather", ARGUMENTS), ("get_weather", ARGUMENTS))
    )


def test_arguments_are_the_models_own_json_to_the_letter() -> None:
    arguments = (
        '{"a" : [1.50e+3, -0, {"b":null}, true] ,\n "c\\u00e9": "</tool_call> \\"\\\\ <tool_call>é😀"}'
    )
    answer = parse("hermes", f'<tool_call>{{"name":"f","arguments":{arguments} }}</tool_call>')
    assert answer == ParsedOutput(content=None, reasoning=None, tool_calls=calls(("f", arguments)))


def test_the_name_may_follow_the_arguments_and_other_keys_may_stand_beside_them() -> None:
    text = '<tool_call>{"id": "7", "arguments": {"a": 1}, "type": "function", "name": "f"}</tool_call>'
    assert parse("hermes", text).tool_calls == calls(("f", '{"a": 1}'))
    text = '<tool_call>{"name": "f", "arguments": {}, "note": [{"x": 5}], "n": -1.5e3}</tool_call>'
    assert parse("hermes", text) == ParsedOutput(content=None, reasoning=None, tool_calls=calls(("f", "{}")))


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ('{"name": "f"}', "{}"),
        ('{"name": "f", "arguments": null}', "{}"),
        ('{"parameters": null , "name": "f", "type": "function"}', "{}"),
        ('{"name": "f", "arguments": "{\\"a\\": \\"\\\\u00e9\\"}"}', '{"a": "\\u00e9"}'),
        ('{"arguments": " {} ", "name": "f"}', "{}"),
        ('{"name": "f", "arguments": ""}', "{}"),
    ],
)
def test_a_hermes_call_may_have_no_arguments_or_a_text_of_them(call: str, arguments: str) -> None:
    answer = parse("hermes", f"<tool_call>{call}</tool_call>")
    assert answer == ParsedOutput(content=None, reasoning=None, tool_calls=calls(("f", arguments)))
    assert parse("llama3_json", call).tool_calls == (), "without marks it may be any JSON"


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call>\n",
        "<tool_call></tool_call>",
        "<tool_call>get_weather(Paris)</tool_call>",
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "x"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "{} {}"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": nul}</tool_call>',
        '<tool_call>{"id": "7"}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {"a": tru}, "name": "f"}</tool_call>',
        '<tool_call>{"answer": 42, "name": "f", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "argum',
        '<tool_call>[{"name": "f"}]</tool_call>',
        "<tool_call>{}</tool_call>",
        "a < b <tool <tool_cal <tool_call",
        "</tool_call>",
        " \n ",
        "",
    ],
)
def test_what_is_no_hermes_call_is_content_to_the_letter(text: str) -> None:
    assert parse("hermes", text) == content(text or None)


def test_a_call_may_follow_a_malformed_one() -> None:
    answer = parse("hermes", f"<tool_call>oops</tool_call><tool_call><tool_call>{CALL}</tool_call>")
    assert answer.content == "<tool_call>oops</tool_call><tool_call>"
    assert answer.tool_calls == calls(("get_weather", ARGUMENTS))


@pytest.mark.parametrize(
    ("arguments", "valid"),
    [
        ('{"a": undefined}', '{"a": '),
        ('{"a": 01}', '{"a": 0'),
        ('{"a": 1.}', '{"a": 1.'),
        ("{'a': 1}", "{"),
        ('{"a": 1,}', '{"a": 1,'),
        ('{"a": [1}', '{"a": [1'),
        ('{"a": "\\x"}', '{"a": "\\'),
        ('{"a" 1}', '{"a" '),
        ('{"a": "\\u12g"}', '{"a": "\\u12'),
    ],
)
def test_arguments_end_where_they_stop_being_json_and_the_rest_is_content(arguments: str, valid: str) -> None:
    answer = parse("hermes", f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>')
    assert answer.tool_calls == calls(("f", valid))
    assert answer.content == f"{arguments[len(valid) :]}}}</tool_call>"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": "f\t", "arguments":\n{"a": "line\nbreak\x00\n"}}</tool_call>'),
        ("hermes", '<tool_call>{"arguments":\n{"a": "line\nbreak\x00\n"}, "name": "f\t"}</tool_call>'),
        (
            "hermes",
            '<tool_call>{"name": "f\t", "arguments": "{\\"a\\": \\"line\\nbreak\x00\n\\"}"}</tool_call>',
        ),
        ("mistral", '[TOOL_CALLS][{"name": "f\t", "arguments": {"a": "line\nbreak\x00\n"}}]'),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"a": "line\nbreak\x00\n"}'),
    ],
)
def test_control_characters_in_strings_are_escaped(name: str, text: str) -> None:
    (call,) = parse(name, text).tool_calls
    assert call.name.strip() == "f"
    assert call.arguments.strip() == '{"a": "line\\nbreak\\u0000\\n"}'


def test_a_call_cut_off_in_its_arguments_keeps_what_there_is() -> None:
    answer = parse("hermes", '<tool_call>{"name": "f", "arguments": {"a": "b')
    assert answer == ParsedOutput(content=None, reasoning=None, tool_calls=calls(("f", '{"a": "b')))


def test_the_name_comes_first_and_arguments_as_they_come_in() -> None:
    parser = make_parser("hermes")
    assert parser.push('Hi <tool_call>{"name": "f", "argu') == [TextDelta(text="Hi ")]
    assert parser.push('ments": {"a": ') == [
        ToolCallDelta(index=0, call_id="id-0", name="f"),
        ToolCallDelta(index=0, arguments='{"a": '),
    ]
    assert parser.push('"x') == [ToolCallDelta(index=0, arguments='"x')]
    assert parser.push('"}') == [ToolCallDelta(index=0, arguments='"}')]
    assert parser.push("}</tool_call>") == []
    assert parser.flush() == []


# --- Llama 3 ---


@pytest.mark.parametrize("key", ["parameters", "arguments"])
@pytest.mark.parametrize("tag", ["", "<|python_tag|>", "\n ", "<|python_tag|> "])
def test_llama_calls_are_json_at_the_beginning(key: str, tag: str) -> None:
    answer = parse("llama3_json", f'{tag}{{"name": "f", "{key}": {{"a": 1}}}}')
    assert answer == ParsedOutput(content=None, reasoning=None, tool_calls=calls(("f", '{"a": 1}')))


@pytest.mark.parametrize("separator", ["; ", ";", "\n", "", " \n"])
def test_llama_calls_are_separated_by_semicolons_or_white_space(separator: str) -> None:
    first, second = (
        '{"name": "f", "parameters": {"a": ";"}}',
        '{"type": "function", "name": "g", "parameters": {}}',
    )
    text = f"{first}{separator}{second}"
    assert parse("llama3_json", text) == ParsedOutput(
        content=None, reasoning=None, tool_calls=calls(("f", '{"a": ";"}'), ("g", "{}"))
    )


def test_a_llama_call_within_content_needs_the_tag() -> None:
    call = '{"name": "f", "parameters": {}}'
    assert parse("llama3_json", f"See: {call}") == content(f"See: {call}")
    answer = parse("llama3_json", f"See: <|python_tag|>{call}")
    assert answer == ParsedOutput(content="See: ", reasoning=None, tool_calls=calls(("f", "{}")))


@pytest.mark.parametrize(
    "text",
    [
        "Hello; world",
        '{"answer": {"name": "f", "parameters": {}}}',
        '{"name": "Bob", "age": 3}',
        '{"name": "Bob"}',
        '<|python_tag|>print("hello")',
        "<|python_tag",
        "{",
        "{}",
    ],
)
def test_other_llama_answers_are_content(text: str) -> None:
    assert parse("llama3_json", text) == content(text)


def test_json_that_is_no_call_streams_from_its_first_key_on() -> None:
    parser = make_parser("llama3_json")
    assert parser.push('{"ans') == []
    assert parser.push('wer": ') == [TextDelta(text='{"answer"'), TextDelta(text=": ")]


def test_text_after_a_llama_call_is_content() -> None:
    answer = parse("llama3_json", '{"name": "f", "parameters": {}}; and more')
    assert answer == ParsedOutput(content="; and more", reasoning=None, tool_calls=calls(("f", "{}")))
    answer = parse("llama3_json", '{"name": "f", "parameters": {}}\n{"result": 5}')
    assert answer == ParsedOutput(content='\n{"result": 5}', reasoning=None, tool_calls=calls(("f", "{}")))


# --- Mistral ---


def test_mistral_calls_stand_in_a_list() -> None:
    text = f'Sure.[TOOL_CALLS] [{CALL}, {{"name": "g", "arguments": {{}}, "id": "abcdefghi"}}]'
    assert parse("mistral", text) == ParsedOutput(
        content="Sure.", reasoning=None, tool_calls=calls(("get_weather", ARGUMENTS), ("g", "{}"))
    )


def test_newer_mistral_calls_each_have_their_marker() -> None:
    text = '[TOOL_CALLS]get_weather[ARGS]{"city": "[ARGS]"}[TOOL_CALLS]g[CALL_ID]a1b2c3d4e[ARGS]{}'
    assert parse("mistral", text) == ParsedOutput(
        content=None, reasoning=None, tool_calls=calls(("get_weather", '{"city": "[ARGS]"}'), ("g", "{}"))
    )
    assert parse("mistral", '[TOOL_CALLS]g{"a": 1}').tool_calls == calls(("g", '{"a": 1}'))


@pytest.mark.parametrize(
    "text",
    [
        "[TOOL_CALLS]",
        "[TOOL_CALLS] []",
        "[TOOL_CALLS] [ {} ]",
        "[TOOL_CALLS]{}",
        "[TOOL_CALLS]f[ARGS]",
        "[TOOL_CALLS]f[ARGS][1]",
        "[TOOL_CALLS]f[ARG]{}",
        "[TOOL_CALLS]some words",
        '[{"name": "f", "arguments": {}}]',
        "[TOOL",
    ],
)
def test_what_is_no_mistral_call_is_content(text: str) -> None:
    assert parse("mistral", text) == content(text)


def test_a_mistral_list_breaks_off_after_its_good_calls() -> None:
    answer = parse("mistral", f'[TOOL_CALLS] [{CALL}, {{"nam": 1}}]')
    assert answer.tool_calls == calls(("get_weather", ARGUMENTS))
    assert answer.content == ', {"nam": 1}]'


# --- halves of surrogate pairs, which JSON and Python can write and UTF-8 cannot hold ---

HALF = "\\ud83d"


@pytest.mark.parametrize(
    ("name", "text", "call"),
    [
        ("hermes", f'<tool_call>{{"name": "f{HALF}", "arguments": {{}}}}</tool_call>', ("f\ufffd", "{}")),
        (
            "hermes",
            f'<tool_call>{{"name": "f", "arguments": "{{\\"a\\": \\"{HALF}\\"}}"}}</tool_call>',
            ("f", '{"a": "\ufffd"}'),
        ),
        ("pythonic", f'[f(a="{HALF}", b="{HALF}\\ude00")]', ("f", '{"a": "\ufffd", "b": "😀"}')),
        (
            "qwen3_coder",
            f'<function=f><parameter=items>["{HALF}"]</parameter></function>',
            ("f", '{"items": ["\ufffd"]}'),
        ),
    ],
)
def test_half_a_surrogate_pair_is_a_replacement_character(
    name: str, text: str, call: tuple[str, str]
) -> None:
    assert parse(name, text, (TYPED,)).tool_calls == calls(call)


# --- cost ---

LONG = "x<\\n" * 25_000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", LONG),
        ("hermes", f'<tool_call>{{"name": "f", "arguments": {{"a": "{LONG}"}}}}</tool_call>'),
        ("hermes", f'<tool_call>{{"name": "{LONG}'),
        ("mistral", "[TOOL_CALLS]" * 8_000),
        ("qwen3_coder", f"<function=f><parameter=count>{LONG}</parameter></function>"),
        ("pythonic", f'[f(a="{LONG}")]'),
    ],
)
def test_a_long_answer_in_single_characters_costs_linear_time(name: str, text: str) -> None:
    parser = make_parser(name, (TYPED,))
    begun = time.process_time()
    for character in text:
        parser.push(character)
    parser.flush()
    assert time.process_time() - begun < 10
