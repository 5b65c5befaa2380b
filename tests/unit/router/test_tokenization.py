from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from baton_core.errors import InvalidModelError, InvalidRequestError
from baton_router.text.chat_template import Conversation
from baton_router.text.large_texts import LARGE
from baton_router.text.model_folder import read_model_folder
from baton_router.text.tokenization import Tokenizer
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


def talk(chat: tuple[tuple[str, str], ...]) -> Conversation:
    return Conversation(messages=tuple({"role": role, "content": content} for role, content in chat))


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
def tokenizer(folder: Path) -> Iterator[Tokenizer]:
    with closing(Tokenizer(read_model_folder(folder))) as tokenizer:
        yield tokenizer


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


@pytest.mark.slow
def test_a_large_text_gets_the_same_ids_and_back(tokenizer: Tokenizer, reference: Any) -> None:
    text = " ".join(TEXTS) * (LARGE // 50)
    ids = tokenizer.encode(text)
    assert len(ids) >= LARGE
    assert list(ids) == reference.encode(text)
    for skip in (True, False):
        assert tokenizer.decode(ids, skip_special_tokens=skip) == reference.decode(
            ids, skip_special_tokens=skip
        )
    with pytest.raises(InvalidRequestError, match="UTF-8"):
        tokenizer.encode(text + "\ud800")


@pytest.mark.parametrize("chat", CHATS)
def test_a_chat_gets_the_text_and_ids_of_transformers(
    tokenizer: Tokenizer, reference: Any, chat: tuple[tuple[str, str], ...]
) -> None:
    plain = [{"role": role, "content": content} for role, content in chat]
    text = reference.apply_chat_template(plain, tokenize=False, add_generation_prompt=True)
    ids = reference.apply_chat_template(plain, add_generation_prompt=True, return_dict=False)
    assert tokenizer.render_chat(talk(chat)) == text
    assert list(tokenizer.encode_prompt(talk(chat))) == ids


def test_a_chat_and_a_text_begin_with_one_bos(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path, tokenizer_json=byte_level_json(adds_bos=True))
    (bos_id,) = tokenizer.encode("<s>", add_special_tokens=False)
    chat = tokenizer.encode_prompt(talk(CHATS[0]))
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


def test_without_a_template_a_chat_is_refused(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path, chat_template=None)
    assert tokenizer.chat_template is None
    with pytest.raises(InvalidRequestError, match="no chat template"):
        tokenizer.render_chat(talk(CHATS[0]))


def test_text_that_utf8_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"prompt is 'a\\udc00'; allowed: text that UTF-8 can hold"):
        make_tokenizer(tmp_path).encode("a\udc00")


def test_a_broken_tokenizer_file_is_an_invalid_model(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match=r"tokenizer\.json"):
        make_tokenizer(tmp_path, tokenizer_json="{}")


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_text_is_cut_to_tokens_at_the_end_of_a_character(kind: str, tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path, **FOLDERS[kind])
    for text in TEXTS:
        num_tokens = len(tokenizer.encode(text, add_special_tokens=False))
        for most in range(1, num_tokens):
            kept = tokenizer.cut(text, most)
            assert text.startswith(kept)
            assert len(tokenizer.encode(kept, add_special_tokens=False)) <= most
        assert tokenizer.cut(text, num_tokens + 1) == text


def test_types_begin_earlier_where_a_second_bos_is_left_out(tmp_path: Path) -> None:
    typed = json.loads(byte_level_json(adds_bos=True))
    typed["post_processor"]["pair"][-1]["Sequence"]["type_id"] = 1
    tokenizer = make_tokenizer(tmp_path, tokenizer_json=json.dumps(typed))
    plain, doubled = tokenizer.encode_pooled(("hi", "x")), tokenizer.encode_pooled(("<s>hi", "x"))
    assert plain == doubled
    assert plain.type_one_from == len(plain.token_ids) - 1


def test_what_is_cut_may_be_large_and_what_fits_may_be_empty(tmp_path: Path) -> None:
    text, added = "hello world " * 50_000, byte_level_json(adds_bos=True)
    with closing(make_tokenizer(tmp_path, tokenizer_json=added)) as tokenizer:
        whole = tokenizer.encode(text)
    for cuts_left, kept in ((False, whole[:9]), (True, (whole[0], *whole[-8:]))):
        assert tokenizer.encode_pooled((text,), limit=9, cuts_left=cuts_left).token_ids == kept
    assert tokenizer.encode_pooled(("",), limit=1).token_ids == whole[:1]
    for texts, limit in (((text, "a"), 9), ((text,), len(whole))):
        with pytest.raises(
            InvalidRequestError, match=r"input is '60000. characters'; allowed: at most 524288"
        ):
            tokenizer.encode_pooled(texts, limit=limit, field="input")
    with pytest.raises(InvalidRequestError, match="truncate_prompt_tokens is 1; allowed: at least 2"):
        tokenizer.encode_pooled(("a",), limit=1)
