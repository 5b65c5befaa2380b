from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from baton_core.errors import InvalidRequestError
from baton_router.process import text_converter
from baton_router.process.text_converter import TextConverter
from baton_router.text.chat_template import Conversation
from baton_router.text.model_folder import read_model_folder
from baton_router.text.tokenization import Tokenizer
from tests.unit.router.folders import TEXTS, byte_level_json, write_model_folder

HI = ({"role": "user", "content": "hi"},)


def make_converter(folder: Path, **files: Any) -> TextConverter:
    files = {"tokenizer_json": byte_level_json(adds_bos=True), **files}
    model = read_model_folder(write_model_folder(folder, **files))
    return TextConverter(model, Tokenizer(model))


@pytest.fixture
def converter(tmp_path: Path) -> TextConverter:
    return make_converter(tmp_path)


@pytest.mark.parametrize("text", [text for text in TEXTS if text])
def test_a_text_comes_back_from_its_ids(converter: TextConverter, text: str) -> None:
    ids = converter.tokenize(text, add_special_tokens=False)
    assert converter.detokenize(ids) == text


def test_special_tokens_are_added_around_a_text_unless_told_otherwise(converter: TextConverter) -> None:
    with_bos = converter.tokenize("hello")
    without = converter.tokenize("hello", add_special_tokens=False)
    assert with_bos == (0, *without)
    assert converter.detokenize(with_bos) == "<s>hello"
    assert converter.detokenize(with_bos, skip_special_tokens=True) == "hello"
    assert converter.detokenize([]) == ""


def test_a_chat_is_rendered_with_the_models_template(converter: TextConverter) -> None:
    rendered = "<s><|im_start|>user\nhi<|im_end|>\n"
    open_end = converter.tokenize(Conversation(messages=HI))
    closed = converter.tokenize(Conversation(messages=HI, add_generation_prompt=False))
    for ids, text in ((open_end, rendered + "<|im_start|>assistant\n"), (closed, rendered)):
        assert converter.detokenize(ids) == text


@pytest.mark.parametrize(
    ("token_ids", "message"),
    [
        ([1] * (2**20 + 1), "token_ids is '1048577 ids'; allowed: at most 1048576 ids"),
        ([1, 400], "token_ids is 400; allowed: token ids from 0 to 399"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_token_ids_are_refused_by_name(
    converter: TextConverter, token_ids: list[int], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        converter.detokenize(token_ids)


def test_a_template_of_a_request_needs_the_operators_trust(converter: TextConverter) -> None:
    with pytest.raises(InvalidRequestError, match="chat_template is 'a template'; allowed: none"):
        converter.tokenize(Conversation(messages=HI, template="{{ messages }}"))


def test_answers_too_large_for_a_message_are_refused(
    converter: TextConverter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_converter, "MAX_TOKENS", 4)
    monkeypatch.setattr(text_converter, "MAX_TEXT_BYTES", 8)
    with pytest.raises(InvalidRequestError, match=r"prompt is '[0-9]+ tokens'; allowed: at most 4 tokens"):
        converter.tokenize("xyzxyzxyz")
    with pytest.raises(
        InvalidRequestError, match=r"token_ids is '.* bytes of text'; allowed: at most 8 bytes"
    ):
        converter.detokenize([2])


def test_a_chat_is_refused_where_the_model_has_no_template(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="no chat template"):
        make_converter(tmp_path, chat_template=None).tokenize(Conversation(messages=HI))
