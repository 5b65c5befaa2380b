from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from baton_core.errors import ErrorCode, InvalidRequestError, RequestError
from baton_proto.v1.baton_pb2 import Chat, ChatMessage, DetokenizeRequest, TokenizeRequest
from baton_router import text_converter
from baton_router.model_folder import read_model_folder
from baton_router.text_converter import TextConverter
from baton_router.tokenization import Tokenizer
from tests.unit.router.folders import TEXTS, byte_level_json, write_model_folder

CHAT = Chat(messages=[ChatMessage(role="user", content="hi")])


def make_converter(folder: Path, **files: Any) -> TextConverter:
    files = {"tokenizer_json": byte_level_json(adds_bos=True), **files}
    model = read_model_folder(write_model_folder(folder, **files))
    return TextConverter(("tiny", "small"), model, Tokenizer(model))


@pytest.fixture
def converter(tmp_path: Path) -> TextConverter:
    return make_converter(tmp_path)


@pytest.mark.parametrize("text", [text for text in TEXTS if text])
def test_a_text_comes_back_from_its_ids(converter: TextConverter, text: str) -> None:
    ids = converter.tokenize(TokenizeRequest(text=text, add_special_tokens=False, model="small"))
    assert converter.detokenize(DetokenizeRequest(token_ids=ids)) == text


def test_special_tokens_are_added_around_a_text_unless_told_otherwise(converter: TextConverter) -> None:
    with_bos = converter.tokenize(TokenizeRequest(text="hello"))
    without = converter.tokenize(TokenizeRequest(text="hello", add_special_tokens=False))
    assert with_bos == (0, *without)
    assert converter.detokenize(DetokenizeRequest(token_ids=with_bos)) == "<s>hello"
    request = DetokenizeRequest(token_ids=with_bos, skip_special_tokens=True)
    assert converter.detokenize(request) == "hello"


def test_a_chat_is_rendered_with_the_models_template(converter: TextConverter) -> None:
    rendered = "<s><|im_start|>user\nhi<|im_end|>\n"
    open_end = converter.tokenize(TokenizeRequest(chat=CHAT))
    closed = converter.tokenize(TokenizeRequest(chat=CHAT, add_generation_prompt=False))
    for ids, text in ((open_end, rendered + "<|im_start|>assistant\n"), (closed, rendered)):
        assert converter.detokenize(DetokenizeRequest(token_ids=ids)) == text


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (TokenizeRequest(), "prompt is None; allowed: one of text and chat"),
        (TokenizeRequest(text=""), "text is ''; allowed: at least one character"),
        (TokenizeRequest(chat=Chat()), r"chat is \[\]; allowed: at least one message"),
        (
            TokenizeRequest(text="a", add_generation_prompt=True),
            "add_generation_prompt is True; allowed: only beside chat",
        ),
        (
            TokenizeRequest(chat=Chat(messages=[ChatMessage(role="user")] * 4097)),
            "chat is '4097 messages'; allowed: at most 4096",
        ),
        (DetokenizeRequest(), "token_ids is '0 ids'; allowed: 1 to 1048576 ids"),
        (DetokenizeRequest(token_ids=[1] * (2**20 + 1)), "token_ids is '1048577 ids'; allowed: 1 to 1048576"),
        (DetokenizeRequest(token_ids=[1, 400]), "token_ids is 400; allowed: token ids from 0 to 399"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_request_is_refused_by_field_value_and_what_is_allowed(
    converter: TextConverter, request_: TokenizeRequest | DetokenizeRequest, message: str
) -> None:
    convert = converter.tokenize if isinstance(request_, TokenizeRequest) else converter.detokenize
    with pytest.raises(InvalidRequestError, match=message):
        convert(request_)  # type: ignore[arg-type]


def test_answers_too_large_for_a_message_are_refused(
    converter: TextConverter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_converter, "MAX_TOKENS", 4)
    monkeypatch.setattr(text_converter, "MAX_TEXT_BYTES", 8)
    with pytest.raises(InvalidRequestError, match=r"prompt is '[0-9]+ tokens'; allowed: at most 4 tokens"):
        converter.tokenize(TokenizeRequest(text="xyzxyzxyz"))
    with pytest.raises(
        InvalidRequestError, match=r"token_ids is '.* bytes of text'; allowed: at most 8 bytes"
    ):
        converter.detokenize(DetokenizeRequest(token_ids=[2]))


def test_another_model_is_not_found(converter: TextConverter) -> None:
    for convert, request in (
        (converter.tokenize, TokenizeRequest(text="a", model="big")),
        (converter.detokenize, DetokenizeRequest(token_ids=[1], model="big")),
    ):
        with pytest.raises(RequestError, match="model is 'big'; allowed: 'tiny', 'small'") as caught:
            convert(request)  # type: ignore[arg-type]
        assert caught.value.code is ErrorCode.NOT_FOUND


def test_a_chat_is_refused_where_the_model_has_no_template(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="no chat template"):
        make_converter(tmp_path, chat_template=None).tokenize(TokenizeRequest(chat=CHAT))
