from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from baton_core.errors import InvalidModelError, InvalidRequestError
from baton_router.chat_template import ChatMessage, ChatTemplate, Conversation
from baton_router.model_folder import read_model_folder
from baton_router.tokenization import Tokenizer
from tests.unit.router.folders import (
    TEXTS,
    byte_fallback_json,
    byte_level_json,
    make_tokenizer,
    write_model_folder,
)

FOLDERS: dict[str, dict[str, Any]] = {
    "without_bos": {"tokenizer_json": byte_level_json(adds_bos=False)},
    "with_bos": {"tokenizer_json": byte_level_json(adds_bos=True)},
    "with_bos_but_not_in_chats": {
        "tokenizer_json": byte_level_json(adds_bos=True),
        "chat_template": "{% for message in messages %}{{ message.content }}\n{% endfor %}",
    },
    "byte_fallback": {"tokenizer_json": byte_fallback_json()},
    "tokens_named_only_in_the_configuration": {
        "tokenizer_json": byte_level_json(adds_bos=False),
        "tokenizer_config": {"pad_token": "<pad>", "extra_special_tokens": ["<tool>"]},
    },
}
CHATS = (
    (("user", "hello"),),
    (
        ("system", "be brief\n"),
        ("user", "你好 😀"),
        ("assistant", " ok "),
        ("user", "a <tool> <pad> 'b' & \"c\""),
    ),
)


def messages(chat: tuple[tuple[str, str], ...]) -> tuple[ChatMessage, ...]:
    return tuple(ChatMessage(role=role, content=content) for role, content in chat)


def bundled_folder() -> Path | None:
    spec = find_spec("baton")
    places = spec.submodule_search_locations if spec is not None else None
    folder = Path(next(iter(places))) / "bundled" if places else None
    return folder if folder is not None and (folder / "tokenizer.json").is_file() else None


@pytest.fixture(scope="module", params=[*FOLDERS, "bundled"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param != "bundled":
        return write_model_folder(tmp_path_factory.mktemp(request.param), **FOLDERS[request.param])
    folder = bundled_folder()
    if folder is None:
        pytest.skip("the bundled model is not in this checkout")
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(read_model_folder(folder))


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("text", [*TEXTS, "a <tool><pad> b", "</s>"])
@pytest.mark.parametrize("add_special_tokens", [True, False])
def test_text_gets_the_ids_of_transformers(
    tokenizer: Tokenizer, reference: Any, text: str, add_special_tokens: bool
) -> None:
    expected = reference.encode(text, add_special_tokens=add_special_tokens)
    assert list(tokenizer.encode(text, add_special_tokens=add_special_tokens)) == expected


@pytest.mark.parametrize("text", [*TEXTS, "a <tool><pad> b"])
@pytest.mark.parametrize("skip", [True, False])
def test_ids_get_the_text_of_transformers(
    tokenizer: Tokenizer, reference: Any, text: str, skip: bool
) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special_tokens=skip) == reference.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("chat", CHATS)
def test_a_chat_gets_the_text_and_ids_of_transformers(
    tokenizer: Tokenizer, reference: Any, chat: tuple[tuple[str, str], ...]
) -> None:
    plain = [{"role": role, "content": content} for role, content in chat]
    text = reference.apply_chat_template(plain, tokenize=False, add_generation_prompt=True)
    ids = reference.apply_chat_template(plain, add_generation_prompt=True, return_dict=False)
    assert tokenizer.render_chat(messages(chat)) == text
    assert list(tokenizer.encode_prompt(Conversation(messages=messages(chat)))) == ids


def test_a_chat_and_a_text_begin_with_one_bos(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path, tokenizer_json=byte_level_json(adds_bos=True))
    (bos_id,) = tokenizer.encode("<s>", add_special_tokens=False)
    chat = tokenizer.encode_prompt(Conversation(messages=messages(CHATS[0])))
    for ids in (chat, tokenizer.encode("hello"), tokenizer.encode("<s>hello"), tokenizer.encode("")):
        assert ids[0] == bos_id
        assert ids.count(bos_id) == 1


def test_token_ids_are_a_prompt_as_they_are(tmp_path: Path) -> None:
    assert make_tokenizer(tmp_path).encode_prompt((0, 0, 5)) == (0, 0, 5)


def test_truncation_and_padding_in_the_file_are_ignored(tmp_path: Path) -> None:
    backend = Backend.from_str(byte_level_json(adds_bos=False))
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    tokenizer = make_tokenizer(tmp_path, tokenizer_json=backend.to_str())
    text = "one two three four five"
    assert list(tokenizer.encode(text)) == Backend.from_str(byte_level_json(adds_bos=False)).encode(text).ids


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages | tojson }}|{{ messages | tojson(indent=2) }}",
        "{% generation %}{% set x = 1 %}{{ messages[0].content }}{% endgeneration %}{{ x is defined }}",
        "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
        "  {% if tools is none and documents is none %}\n none\n {% endif %}\n{{ eos_token }}{{ pad_token }}",
        "{%- set s = namespace(n=0) -%}{% for m in messages %}{% set s.n = s.n + 1 %}{% endfor %}{{ s.n }}",
        "{{ strftime_now('%Y-%m-%d') }}{{ messages[0]['content'].split('l')[-1] | upper }}",
    ],
)
def test_templates_render_as_in_transformers(tmp_path: Path, template: str) -> None:
    folder = write_model_folder(tmp_path, chat_template=template)
    reference = AutoTokenizer.from_pretrained(folder)
    for chat in CHATS:
        plain = [{"role": role, "content": content} for role, content in chat]
        expected = reference.apply_chat_template(plain, tokenize=False, add_generation_prompt=True)
        assert Tokenizer(read_model_folder(folder)).render_chat(messages(chat)) == expected


def test_what_a_template_refuses_is_an_invalid_request_with_its_reason(tmp_path: Path) -> None:
    chat = (("user", "a"), ("system", "b"))
    with pytest.raises(InvalidRequestError, match=r"chat is 'messages of user, system'.*must come first"):
        make_tokenizer(tmp_path).render_chat(messages(chat))


@pytest.mark.parametrize(
    "source",
    ["{{ ().__class__.__base__ }}", "{{ messages.append(1) }}", "{{ 1 / 0 }}", "{{ messages[0] + 1 }}"],
)
def test_a_template_cannot_leave_the_sandbox_nor_break_the_router(source: str) -> None:
    with pytest.raises(InvalidRequestError):
        ChatTemplate(source, {}).render(messages(CHATS[0]))


def test_a_broken_template_is_an_invalid_model() -> None:
    with pytest.raises(InvalidModelError, match="chat_template"):
        ChatTemplate("{% for m in messages %}", {})


def test_without_a_template_a_chat_is_refused(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path, chat_template=None)
    assert not tokenizer.has_chat_template
    with pytest.raises(InvalidRequestError, match="no chat template"):
        tokenizer.render_chat(messages(CHATS[0]))


def test_a_broken_tokenizer_file_is_an_invalid_model(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match=r"tokenizer\.json"):
        make_tokenizer(tmp_path, tokenizer_json="{}")
