from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from baton_core.errors import InvalidConfigError, InvalidModelError, InvalidRequestError
from baton_router.text.chat_template import ChatDefaults, ChatTemplate, Conversation
from baton_router.text.model_folder import read_chat_template, read_model_folder
from baton_router.text.template_sandbox import make_environment
from baton_router.text.tokenization import Tokenizer
from tests.unit.router.folders import make_tokenizer, write_model_folder

Messages = tuple[Mapping[str, Any], ...]
HELLO: Messages = ({"role": "user", "content": "hello"},)
TALK: Messages = (
    {"role": "system", "content": "be brief\n"},
    {"role": "user", "content": "你好 😀"},
    {"role": "assistant", "content": " ok "},
    {"role": "user", "content": "a <tool> 'b' & \"c\""},
)
CALL: Messages = (
    *HELLO,
    {
        "role": "assistant",
        "content": None,
        "reasoning": "hm",
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": "é", "b": [1]}}}],
    },
    {"role": "tool", "content": "42"},
)
TOOLS = ({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},)
WITH_PARTS = (
    "{% for m in messages %}{{ m.role }}:{% for part in m['content'] -%}"
    "[{{ part.text }}]{% endfor %}{% endfor %}"
)
WITH_BOTH = (
    "{% for m in messages %}{% set c = m.content %}{% if c is string %}{{ c }}{% else %}"
    "{% for part in c %}[{{ part.text }}]{% endfor %}{% endif %}{% endfor %}"
)


def render(source: str, messages: Messages = HELLO, **fields: Any) -> str:
    return ChatTemplate(source).render(Conversation(messages=messages, **fields))


@pytest.mark.slow
@pytest.mark.parametrize(
    "template",
    [
        "{{ messages | tojson }}|{{ messages | tojson(indent=2) }}",
        "{% generation %}{% set x = 1 %}{{ messages[0].content }}{% endgeneration %}{{ x is defined }}",
        "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
        "  {% if tools is none and documents is none %}\n none\n {% endif %}\n{{ eos_token }}{{ pad_token }}",
        "{%- set s = namespace(n=0) -%}{% for m in messages %}{% set s.n = s.n + 1 %}{% endfor %}{{ s.n }}",
        "{{ strftime_now('%Y-%m-%d') }}{{ messages[0]['content'].split('l')[-1] | upper }}",
        "{% macro f(m) %}{{ m.role * 2 }}{% endmacro %}{% for m in messages %}{{ f(m) }}{% endfor %}",
    ],
)
def test_templates_render_as_in_transformers(tmp_path: Path, template: str) -> None:
    folder = write_model_folder(tmp_path, chat_template=template)
    reference, tokenizer = AutoTokenizer.from_pretrained(folder), Tokenizer(read_model_folder(folder))
    for messages in (HELLO, TALK):
        expected = reference.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        assert tokenizer.render_chat(Conversation(messages=messages)) == expected


@pytest.mark.parametrize("tools", [(), TOOLS])
def test_tools_documents_calls_and_further_variables_render_as_in_transformers(
    tmp_path: Path, tools: tuple[Mapping[str, Any], ...]
) -> None:
    template = (
        "{{ tools | tojson }}{{ documents | tojson }}{{ enable_thinking }}{{ add_generation_prompt }}"
        "{% for m in messages %}{{ m.role }}{{ m.content }}{{ m.reasoning_content }}"
        "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}{% endfor %}"
    )
    default, for_tools = template, "tools: " + template
    named = [{"name": "default", "template": default}, {"name": "tool_use", "template": for_tools}]
    folder = write_model_folder(tmp_path, chat_template=None, tokenizer_config={"chat_template": named})
    documents = [{"title": "t", "text": "x"}]
    expected = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        list(CALL), tools=list(tools) or None, documents=documents, enable_thinking=False, tokenize=False
    )
    conversation = Conversation(
        messages=CALL,
        tools=tools,
        documents=tuple(documents),
        template_arguments={"enable_thinking": False},
        add_generation_prompt=False,
    )
    assert Tokenizer(read_model_folder(folder)).render_chat(conversation) == expected
    assert expected.startswith("tools: ") == bool(tools)


@pytest.mark.parametrize("content", ["Once upon", " Once upon a ", "x"])
@pytest.mark.parametrize("is_trimmed", [False, True])
@pytest.mark.parametrize("is_in_parts", [False, True])
def test_a_final_message_is_continued_as_in_transformers(
    tmp_path: Path, content: str, is_trimmed: bool, is_in_parts: bool
) -> None:
    text = "part.text" if is_in_parts else "m.content"
    body = f"{{{{ {text}{' | trim' if is_trimmed else ''} }}}}"
    if is_in_parts:
        body = f"{{% for part in m.content %}}{body}{{% endfor %}}"
    template = f"{{% for m in messages %}}<{{{{ m.role }}}}>{body}</s>\n{{% endfor %}}"
    folder = write_model_folder(tmp_path, chat_template=template)
    given: Any = (
        [{"type": "text", "text": "so: "}, {"type": "text", "text": content}] if is_in_parts else content
    )
    messages = [{"role": "user", "content": given}, {"role": "assistant", "content": given}]
    expected = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        messages, tokenize=False, continue_final_message=True
    )
    conversation = Conversation(
        messages=tuple(messages), add_generation_prompt=False, continue_final_message=True
    )
    rendered = Tokenizer(read_model_folder(folder)).render_chat(conversation)
    assert rendered == expected
    assert rendered.rstrip().endswith(content.strip())
    assert given == messages[1]["content"]


@pytest.mark.parametrize(
    ("source", "messages", "fields", "message"),
    [
        ("{{ messages[0].content }}", HELLO, {"add_generation_prompt": True}, "true for one of"),
        ("{{ messages[0].role }}", HELLO, {}, "does not write the last message as it is"),
        ("{{ messages[0].content.split('l')[-1] }}", HELLO, {}, "does not write the last message as it is"),
        (WITH_PARTS, ({"role": "assistant", "content": None},), {}, r"false after a content of \[\]"),
    ],
)
def test_what_cannot_be_continued_is_refused(
    source: str, messages: Messages, fields: dict[str, Any], message: str
) -> None:
    fields = {"add_generation_prompt": False, "continue_final_message": True, **fields}
    with pytest.raises(InvalidRequestError, match=f"continue_final_message is True; allowed: .*{message}"):
        render(source, messages, **fields)


@pytest.mark.parametrize(
    ("source", "content", "expected"),
    [
        ("{{ messages[0].content }}", "a", "a"),
        ("{{ messages[0].content }}", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        ("{{ messages[0].content }}", ["a", {"type": "refusal", "refusal": "no"}], "a\nno"),
        (WITH_PARTS, "a", "user:[a]"),
        (WITH_PARTS, [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}], "user:[a][b]"),
        (WITH_BOTH, "a", "a"),
        (WITH_BOTH, [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "[a][b]"),
    ],
)
def test_contents_come_in_the_form_that_the_template_takes(source: str, content: Any, expected: str) -> None:
    assert render(source, ({"role": "user", "content": content},)) == expected


@pytest.mark.parametrize(
    ("content_format", "source", "expected"),
    [
        ("auto", WITH_BOTH, "[a][b]"),
        ("string", WITH_BOTH, "a\nb"),
        ("openai", "{{ messages[0].content[1].text }}", "b"),
    ],
)
def test_the_operator_may_choose_the_form_of_contents(
    content_format: str, source: str, expected: str
) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    conversation = Conversation(messages=({"role": "user", "content": parts},))
    defaults = ChatDefaults(content_format=content_format)
    assert ChatTemplate(source).render(defaults.complete(conversation)) == expected
    with pytest.raises(InvalidConfigError, match=r"^--chat-template-content-format is 'x'; allowed: auto"):
        ChatDefaults(content_format="x")


@pytest.mark.parametrize("message", [{"role": "assistant"}, {"role": "assistant", "content": None}])
def test_a_message_without_content_has_an_empty_one(message: dict[str, Any]) -> None:
    message = {**message, "tool_calls": [{"function": {"name": "f"}}]}
    assert render("{{ 'a' + messages[0]['content'] + 'b' }}", (message,)) == "ab"
    assert render(WITH_PARTS, (message,)) == "assistant:"
    assert render(WITH_BOTH, (message,)) == ""


@pytest.mark.parametrize("content", ["a\nb", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]])
@pytest.mark.parametrize("source", [WITH_PARTS, WITH_BOTH, "{{ messages[0].content }}"])
def test_the_result_of_a_tool_is_text_for_every_template(source: str, content: Any) -> None:
    messages = ({"role": "tool", "content": content},)
    assert render(source + "{{ messages[0].content }}", messages).endswith("a\nb")
    openai = ChatDefaults(content_format="openai").complete(Conversation(messages=messages))
    assert ChatTemplate("{{ messages[0].content }}").render(openai) == "a\nb"


def test_a_message_without_calls_has_no_list_of_them() -> None:
    source = "{% if 'tool_calls' in messages[0] %}{{ messages[0].tool_calls }}{% else %}none{% endif %}"
    assert render(source, ({"role": "assistant", "content": "a", "tool_calls": []},)) == "none"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"city": "Ber', "{}"),
        ("", "{}"),
        (None, "{}"),
        ("null", "{}"),
        ("[1, 2]", "[1, 2]"),
        ([1, 2], "[1, 2]"),
        ('"Berlin"', '"Berlin"'),
        ('{"a\\ud83d": "\\ude00"}', '{"a\ufffd": "\ufffd"}'),
        ('["\\ud83d\\ude00"]', '["😀"]'),
        ("[" * 100_000, "{}"),
    ],
)
def test_a_conversation_goes_on_after_a_call_that_is_no_object(arguments: Any, expected: str) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    assert render(source, ({"role": "assistant", "content": "", "tool_calls": [call]},)) == expected


def test_arguments_of_tool_calls_become_objects() -> None:
    function = {"name": "f", "arguments": '{"a": "é"}'}
    messages = ({"role": "assistant", "content": "", "tool_calls": [{"function": function}]},)
    source = "{{ messages[0].tool_calls[0].function.arguments.a }}"
    assert render(source, messages) == "é"
    assert function["arguments"] == '{"a": "é"}'


@pytest.mark.parametrize(
    ("message", "refusal"),
    [
        ({"content": "a"}, r"messages\[0\] is .*; allowed: objects with a role"),
        ({"role": "user", "content": 5}, r"messages\[0\]\.content is 5; allowed: text, a list of parts"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]},
            r"messages\[0\]\.content\[0\]\.type is 'image_url'; allowed: text: this router",
        ),
        (
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
            r"messages\[0\]\.content\[0\]\.type is 'input_audio'; allowed: text",
        ),
        ({"role": "user", "content": [{"type": "text"}]}, r"messages\[0\]\.content\[0\]\.text is None"),
        ({"role": "user", "content": [5]}, r"messages\[0\]\.content\[0\] is 5; allowed: an object"),
        ({"role": "assistant", "tool_calls": [5]}, r"messages\[0\]\.tool_calls\[0\] is 5"),
    ],
)
def test_a_message_out_of_form_is_refused_by_name(message: dict[str, Any], refusal: str) -> None:
    with pytest.raises(InvalidRequestError, match=refusal):
        render("{{ messages }}", (message,))


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "chat_template"])
def test_a_further_variable_cannot_take_the_name_of_another(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"chat_template_kwargs is '{name}'; allowed: names but"):
        render("a", template_arguments={name: 1})


def test_no_messages_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"messages is \[\]; allowed: at least one message"):
        render("a", ())


def test_what_a_template_refuses_is_an_invalid_request_with_its_reason(tmp_path: Path) -> None:
    messages = ({"role": "user", "content": "a"}, {"role": "system", "content": "b"})
    with pytest.raises(InvalidRequestError, match=r"chat is 'messages of user, system'.*must come first"):
        make_tokenizer(tmp_path).render_chat(Conversation(messages=messages))


def test_a_conversation_may_bring_its_template(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path)
    own = "{{ bos_token }}{{ messages[0].content }}"
    assert tokenizer.render_chat(Conversation(messages=HELLO, template=own)) == "<s>hello"
    with pytest.raises(InvalidRequestError, match=r"^chat_template is '{%'; allowed: Jinja \([^;]*\)$"):
        tokenizer.render_chat(Conversation(messages=HELLO, template="{%"))


def test_the_operators_template_replaces_all_of_the_models(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}]
    folder = write_model_folder(tmp_path, tokenizer_config={"chat_template": named})
    path = tmp_path / "mine.jinja"
    path.write_text("mine {{ messages[0].content }}", encoding="utf-8")
    tokenizer = Tokenizer(read_model_folder(folder), read_chat_template(str(path)))
    for tools in ((), TOOLS):
        assert tokenizer.render_chat(Conversation(messages=HELLO, tools=tools)) == "mine hello"
    assert read_chat_template("inline {{ messages }}") == "inline {{ messages }}"
    with pytest.raises(
        InvalidConfigError, match=r"--chat-template is 'none\.jinja'; allowed: a file that exists"
    ):
        read_chat_template("none.jinja")


def test_named_templates_are_found_in_their_folder(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("for tools", encoding="utf-8")
    model = read_model_folder(folder)
    assert Tokenizer(model).render_chat(Conversation(messages=HELLO, tools=TOOLS)) == "for tools"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ().__class__.__base__ }}",
        "{{ messages.append(1) }}",
        "{{ 1 / 0 }}",
        "{{ messages[0] + 1 }}",
        "{{ messages[0].content.encode().nope() }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'a' * 10**12 }}",
        "{{ 10 ** 10000000 }}",
        "{% set n = namespace(s='aa') %}{% for i in range(24) %}{% set n.s = n.s*2 %}{% endfor %}{{ n.s }}",
        "{% set n = namespace() %}{% set n._x = 1 %}",
        "{{ dict.mro() }}",
    ],
)
def test_a_template_cannot_leave_the_sandbox_nor_break_the_router(source: str) -> None:
    with pytest.raises(InvalidRequestError, match="chat is 'messages of user'"):
        render(source)


@pytest.mark.parametrize("source", ["{{ '%90000000d' % 1 }}", "{{ 'a' | center(90000000) }}"])
def test_constants_are_computed_within_the_limits_of_a_rendering(source: str) -> None:
    compiled = make_environment().compile(source, raw=True)
    assert len(compiled) < 2000
    with pytest.raises(InvalidRequestError, match="it yields more than 16777216 characters"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{{ range(99999) | sum }}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) ~ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}{% set f = namespace(n=0) %}"
        "{% for i in range(99999) %}{% call m() %}{{ range(9999) | sum }}{% endcall %}{% endfor %}",
    ],
)
def test_a_template_without_end_is_ended(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton_router.text.template_sandbox.MAX_RENDER_S", 0.05)
    with pytest.raises(InvalidRequestError, match=r"takes \(it takes more than 0\.05 s\)"):
        render(source)


@pytest.mark.parametrize(
    "source", ["{% for m in messages %}", "{{ " + "(" * 5000 + ")" * 5000 + " }}", "a" * (2**18 + 1)]
)
def test_a_broken_template_is_an_invalid_model(source: str) -> None:
    with pytest.raises(InvalidModelError, match="chat_template"):
        ChatTemplate(source)
