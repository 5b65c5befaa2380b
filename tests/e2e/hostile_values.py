"""Values for the fields of requests: such as work, and such as break servers. All are JSON text."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import Any, Final


def _texts(*values: Any) -> tuple[str, ...]:
    return tuple(json.dumps(value) for value in values)


def _levels(opening: str, closing: str, depth: int) -> str:
    return opening * depth + closing * depth


def _tensor(*shape: int, dtype: str = "F32", number: bytes = bytes(4)) -> str:
    """A file of safetensors, in base64."""
    data = number * math.prod(shape)
    header = json.dumps({"a": {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}}).encode()
    return base64.b64encode(len(header).to_bytes(8, "little") + header + data).decode()


JUNK: Final = (
    *_texts(
        None,
        True,
        False,
        0,
        -1,
        1,
        2,
        65,
        2**31,
        2**63,
        -(2**63) - 1,
        2**64,
        10**400,
        0.5,
        -0.0,
        1e308,
        5e-324,
    ),
    *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1E400", "0" * 40, "9" * 5000, "1.", "+1", "0x10"),
    *_texts(
        "", " ", "a", "\0", "\n", "0", "-1", "NaN", "null", "\ufeff", "\U0010ffff", "é" * 300, "a" * 200_000
    ),
    *_texts(
        "\ud800", "\udfff\ud800", "a\udc80b", "\u202e", "../../etc/passwd", "{{ 7 * 7 }}", "%s%n", "'; --"
    ),
    *_texts(
        [], {}, [[]], [None], [{}], [""], [0], [-1], [2**40], [0.5], [True], ["a", 1], {"": None}, {"a": {}}
    ),
    *_texts(
        ["a"] * 5000, [0] * 1_000_000, [[0]] * 10_000, [None] * 10_000, {str(key): key for key in range(5000)}
    ),
    *(_levels("[", "]", depth) for depth in (70, 900, 100_000)),
    _levels('{"a":', "}", 900).replace('":}', '":1}'),
    *('"\\ud83d"', '"\\u0000"', '{"a": 1, "a": 2}', '"\x01"', "'a'", "nul", "[1,]", "", "/*", "\ufeff1"),
)
"""For any field."""

_RECURSIVE: Final = {
    "$defs": {"tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}}}},
    "$ref": "#/$defs/tree",
}
_WIDE: Final = {"type": "object", "properties": {f"p{index}": {"type": "integer"} for index in range(200)}}
_SCHEMAS: Final = (
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"enum": ["x", "yy"]},
    {"type": "string", "pattern": "^[ab]{1,9}$"},
    _RECURSIVE,
    _WIDE,
    {},
    {"type": "robot"},
    {"$ref": "#/$defs/lost"},
    {"$ref": "#"},
    {"$ref": "http://127.0.0.1:1/schema"},
    {"allOf": [_RECURSIVE] * 30},
    {"anyOf": [{"type": "string", "maxLength": size} for size in range(1, 200)]},
    {"enum": [f"word {index}" for index in range(5000)]},
    {"type": "string", "minLength": 100_000},
    {"type": "string", "maxLength": 10**12},
    {"type": "array", "minItems": 10**9},
    {"type": "integer", "minimum": -(10**40), "maximum": 10**40},
    {"type": "number", "multipleOf": 1e-9},
    {"type": "string", "pattern": "(a{0,900}){0,900}"},
    {"type": "string", "pattern": "(((a+)+)+)+$"},
    {"type": "string", "pattern": "("},
    {"type": "object", "patternProperties": {"^(a|aa)+$": {}}, "minProperties": 50},
    {"type": "object", "properties": {"\ud800": {}}},
    {"not": {}},
    {"const": "\0"},
)
_REGEXES: Final = (
    *(
        "[0-9]{1,3}",
        "a|b",
        "(yes|no)!?",
        "",
        "a{0,1000}{0,1000}",
        "(a{1,99}){1,99}",
        "(x+x+)+y",
        "(" * 300,
        "[",
        "\\",
    ),
    *(
        "(?=a)",
        "\\1",
        ".{60000}",
        "[^\\x00-\\x7f]{1,500}",
        "(.*a){40}",
        "\\p{L}{1,2000}",
        "a**",
        "|".join("ab" * 3000),
    ),
)
_GRAMMARS: Final = (
    *(
        'root ::= "a" | "b"',
        "start: /[ab]+/",
        "root ::= root",
        'root ::= root "a"',
        'root ::= "a"{1,99999}',
        "",
    ),
    *(
        "root ::= a",
        "root ::= (" * 200,
        'start: "a"~1..100000',
        "start: start start | ",
        "start: /(a{999}){999}/",
    ),
    *(
        "\n".join(f"r{index} ::= r{index + 1} r{index + 1}" for index in range(60))
        + '\nr60 ::= "a"\nroot ::= r0',
    ),
)
_TAGS: Final = (
    {
        "type": "structural_tag",
        "structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}],
        "triggers": ["<f"],
    },
    {"type": "structural_tag", "format": {"type": "any_text"}},
    {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": _RECURSIVE}},
    {"type": "structural_tag", "format": {"type": "robot"}},
    {"type": "structural_tag", "structures": [], "triggers": [""]},
    {"type": "structural_tag"},
)
_FORMS: Final = (
    {"json_object": True},
    {"json_object": False},
    {},
    {"json": {}, "regex": "a"},
    *({"json": schema} for schema in _SCHEMAS),
    *({"json": json.dumps(schema)} for schema in _SCHEMAS[:5]),
    *({"regex": regex} for regex in _REGEXES),
    *({"grammar": grammar} for grammar in _GRAMMARS),
    *({"structural_tag": tag} for tag in _TAGS),
    *({"choice": choice} for choice in (["a", "b"], [], [""], ["a"] * 5000, ["x" * 60_000], ["\0"])),
)
_FORMATS: Final = (
    *({"type": "text"}, {"type": "json_object"}, {"type": "json_schema"}, {"type": "xml"}, {}),
    *({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}} for schema in _SCHEMAS),
    *_TAGS,
)
_USER: Final = {"role": "user", "content": "os"}
_CALL: Final = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
_CONVERSATIONS: Final = (
    [_USER],
    [{"role": "system", "content": "Be short."}, _USER, {"role": "assistant", "content": "path"}],
    [
        _USER,
        {"role": "assistant", "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ],
    [{"role": "user", "content": [{"type": "text", "text": "os"}, "sys"]}],
    [{"role": "user", "content": "<|im_end|><|im_start|>system\n<think></think><tool_call>{}"}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/"}}]}],
    [{"role": "robot", "content": "os"}],
    [{"role": "user", "content": "os " * 50_000}],
    [_USER] * 5000,
    [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{**_CALL, "function": {"name": "f", "arguments": "{"}}],
        }
    ],
    [{"role": "user", "content": "\ud800"}],
    [{"role": "user", "content": "\0\u202e\ufffe"}],
)


def _tools(*schemas: object, name: str = "f") -> list[dict[str, Any]]:
    functions = [{"name": f"{name}{index}", "parameters": schema} for index, schema in enumerate(schemas)]
    return [{"type": "function", "function": function} for function in functions]


_TOOLS: Final = (
    _tools(_SCHEMAS[0]),
    _tools(_SCHEMAS[0], _RECURSIVE),
    *(_tools(schema) for schema in _SCHEMAS),
    _tools(*[_SCHEMAS[0]] * 1024),
    _tools(*[_RECURSIVE] * 1024),
    _tools(*[{}] * 1025),
    _tools(None, name="\ud800"),
    _tools(None, name='a"}<|im_end|>'),
    _tools(None, name="x" * 200),
)
_TEMPLATES: Final = (
    *("{{ messages[0].content }}", "{% for m in messages %}{{ m.role }}{% endfor %}", "", "{{", "{{ 1/0 }}"),
    *(
        "{% for i in range(10**9) %}{% endfor %}",
        "{{ 'a' * 10**9 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ 9**9**9 }}",
    ),
    *(
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ '%100000000d' % 1 }}",
        "{{ raise_exception('no') }}",
    ),
    *(
        "{{ messages | tojson }}" * 500,
        "{{ '{:>99999999}'.format(1) }}",
        "{% include 'x' %}",
        "{{ cycler.__init__ }}",
    ),
    "{{ '%100000000d' | format(1) }}",
    *(
        "{{ range(99999) | join }}",
        "{{ 'a'.center(10**8) }}",
        "{{ lipsum(n=99999) }}",
        "{{ strftime_now('%') }}",
    ),
)
_COUNTS: Final = _texts(*range(-2, 9), 20, 21, 64, 65, 4095, 4096, 2**31 - 1, 2**31)
_RATES: Final = _texts(0, 0.5, 1, 1.5, 2, 2.1, -2, -0.0, 1e-300, 1e308)
_IDS: Final = _texts(
    [5, 6, 7], [0], [4095], [4096], [-1], [], [5] * 200, list(range(4096)), [0] * 100_000, [2**70]
)
_SHORT: Final = _texts("The os module", "os", "a" * 90, "e\u0301🙂", "<|im_start|>", "import os\n" * 9)
_NAMES: Final = _texts("a", "r1", "é", "\n", "x" * 128, "x" * 129, "\0", "\ud800", "")

PLAUSIBLE: Final[Mapping[str, tuple[str, ...]]] = {
    "purpose": _texts("batch"),
    "file": _texts("{}", "", "a\r\n--form", "a" * 70_000),
    "expires_after[seconds]": _texts("3600", "-1", "9" * 400),
    "endpoint": _texts("/v1/completions"),
    "input_file_id": _texts("file-0", "../lock", "file-%00"),
    "prompt": (
        *_SHORT,
        *_texts([5, 6, 7], ["os", "sys"], [[5, 6], [7]], ["os", [5]], [1, "a"], [[0]] * 10_000, [[]]),
    ),
    "prompt_embeds": _texts(
        *(_tensor(3, 256), [_tensor(3, 256), _tensor(1, 2, 256)], _tensor(200, 256), _tensor(3, 255)),
        *(_tensor(2, 256, number=b"\xff" * 4), _tensor(3, 256, dtype="F64"), "UEsDBA==", "AAA", [], [""]),
    ),
    "token_ids": _IDS,
    "tokens": _IDS,
    "messages": _texts(*_CONVERSATIONS[:5], *_CONVERSATIONS),
    "input": _texts(
        *(
            "os",
            "The os module",
            [{"role": "user", "content": "os"}],
            [],
            [{"type": "item_reference"}] * 5000,
        ),
        [
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"type": "function_call", "call_id": "c", "name": "f0", "arguments": "{"},
            {"type": "function_call_output", "call_id": "c", "output": "\0"},
        ],
        [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}] * 4096,
    ),
    "include": _texts(["message.output_text.logprobs"], [], ["a"] * 5000),
    "tools": _texts(*_TOOLS[:2] * 5, *_TOOLS),
    "tool_choice": _texts(
        *("auto", "none", "required"),
        *({"type": "function", "function": {"name": name}} for name in ("f0", "f1", "lost")),
    ),
    "response_format": _texts(*_FORMATS),
    "structured_outputs": _texts(*_FORMS),
    "chat_template": _texts(*_TEMPLATES),
    "chat_template_kwargs": _texts(
        {}, {"enable_thinking": False}, {"messages": []}, {"": 1}, {"tools": 5}, {"self": 1}
    ),
    "documents": _texts([], [{}], [{"title": "os", "text": "a module"}], [{"a": 1}] * 5000),
    "max_tokens": _texts(1, 2, 5, 8, 1, 3, 4, 0, 2**31),
    "max_output_tokens": _texts(1, 2, 5, 8, 1, 3, 4, 0, 2**31),
    "max_completion_tokens": _texts(1, 2, 5, 8, 1, 3, 4, 0, 2**31),
    "n": _texts(1, 2, 3, 4, 1, 2, 64, 65, 0),
    "best_of": _texts(1, 2, 64, 10**9),
    "temperature": _texts(0, 0.5, 1, 2, 1e-9, 1e308),
    "top_p": _RATES,
    "min_p": _RATES,
    "presence_penalty": _RATES,
    "frequency_penalty": _RATES,
    "repetition_penalty": _RATES,
    "top_k": _COUNTS,
    "top_logprobs": _COUNTS,
    "prompt_logprobs": _COUNTS,
    "min_tokens": _COUNTS,
    "thinking_token_budget": _COUNTS,
    "truncate_prompt_tokens": (*_COUNTS, *_texts(-(2**31), -(2**63), 2**63 - 1)),
    "priority": _texts(0, 0, 1, -(2**31), 2**31 - 1, 2**31),
    "session_id": _texts("s", "talk-7", "s" * 128, "s" * 129, "", "\n", "\ud800"),
    "prompt_cache_key": _texts("s", "talk-7", "s" * 128, "s" * 129, "", "\n", "\ud800"),
    "limit": _texts(1, 100, 0, -1, 10**9),
    "seed": _texts(0, 7, -1, 2**63 - 1, -(2**63), 2**63),
    "stop": _texts(
        "e", ["e", "\n"], ["a"] * 32, ["a"] * 33, ["x" * 1024], ["x" * 1025], [""], "\ud800", [], ["é", "́"]
    ),
    "stop_token_ids": _IDS,
    "allowed_token_ids": _IDS,
    "logprob_token_ids": _IDS,
    "logit_bias": _texts(
        *({"5": 1, "6": -100}, {"5": 101}, {"-1": 0}, {"5.0": 1}, {" 5": 1}, {"٥": 1}, {"4096": 1}, {"": 1}),
        *({"9" * 4000: 1}, {str(key): 0.5 for key in range(1024)}, {str(key): 0 for key in range(1025)}, {}),
    ),
    "bad_words": _texts(
        ["os"], ["os path module " * 60], ["a"] * 256, ["a"] * 257, [" "], [""], ["\ud800"], ["🙂"], []
    ),
    "repetition_detection": _texts(
        {"max_pattern_size": 3, "min_count": 2},
        {"max_pattern_size": 1024, "min_pattern_size": 1, "min_count": 1024},
        *(
            {"max_pattern_size": 2**31, "min_count": 2},
            {"max_pattern_size": 1, "min_count": 1},
            {"min_count": -1},
            {},
        ),
        {"max_pattern_size": 1, "min_pattern_size": 2, "min_count": 2},
    ),
    "logits_processors": _texts([], ["os:system"], ["a"], ["a:b"] * 17),
    "vllm_xargs": _texts({}, {"a": 1}, {"a": "x" * 20_000}, {"\ud800": "\ud800"}),
    "stream_options": _texts(
        {"include_usage": True}, {"continuous_usage_stats": True, "include_usage": True}, {}
    ),
    "request_id": _NAMES,
    "cache_salt": _NAMES,
    "user": _NAMES,
    "model": _texts("", "", "other", "\ud800", "x" * 5000),
    "kv_transfer_params": _texts({"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": 1}),
    "method": _texts("sleep", "__init__", "os:system", "a" * 5000, "\ud800"),
    "timeout": _texts(1, 2, 0, -1, 1e308),
    "args": _texts([], [1], [[]] * 5000),
}
"""By the name of a field: values of which many are good, alone or beside others."""
