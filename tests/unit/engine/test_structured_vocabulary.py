from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer

from baton_core.errors import InvalidModelError
from baton_engine.structured.vocabulary import Vocabulary
from baton_router.text.token_decoding import TokenDecoder
from tests.models import make_tokenizer
from tests.unit.engine.grammars import BACKENDS, BUNDLED, Model, compiled, text_of, walk
from tests.unit.router.folders import byte_fallback_json, byte_level_json
from tests.unit.router.tokenizer_kinds import tokenizer_json

pytestmark = pytest.mark.slow

SAMPLES = ("hello he l", "<tool>hello", "o\nl  hello")
BYTE_SAMPLES = ("naïve 你好 😀", "\x00\x7f\ufffd\u2028 ", "Ġa ▁b")


def folder_with(folder: Path, tokenizer: str) -> Path:
    (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    return folder


def spelled(vocabulary: Vocabulary, text: str) -> str:
    return text_of(vocabulary.tokenizer.encode(text, add_special_tokens=False).ids, vocabulary.texts)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "unigram_with_bytes"])
def test_tokens_joined_spell_the_text(tmp_path: Path, kind: str) -> None:
    vocabulary = Vocabulary.read(folder_with(tmp_path, tokenizer_json(kind)), 1000)
    prefix = spelled(vocabulary, "h").removesuffix("h")
    for text in (*SAMPLES, *BYTE_SAMPLES):
        assert spelled(vocabulary, text).removeprefix(prefix) in (text, text.replace("▁", " "))


def test_sentence_piece_without_bytes_spells_its_pieces(tmp_path: Path) -> None:
    vocabulary = Vocabulary.read(folder_with(tmp_path, tokenizer_json("unigram")), 100)
    assert spelled(vocabulary, "hello é") == " hello é"


@pytest.mark.parametrize("kind", ["word_piece", "word_level", "suffixed"])
def test_a_tokenizer_whose_pieces_depend_on_each_other_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(InvalidModelError, match="decoder is"):
        Vocabulary.read(folder_with(tmp_path, tokenizer_json(kind)), 100)


def test_special_tokens_have_no_text_and_added_ones_do(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, tokenizer_json("byte_level"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"pad_token": {"content": "h"}, "additional_special_tokens": ["e"], "eos_token": None})
    )
    vocabulary = Vocabulary.read(folder, 1000)
    ids = [vocabulary.tokenizer.token_to_id(token) for token in ("<s>", "h", "e", "<tool>", "l")]
    assert [vocabulary.texts[token_id] for token_id in ids] == [b"", b"", b"", b"<tool>", b"l"]
    assert [vocabulary.texts_with_marks([ids[1]])[each] for each in ids] == [
        b"<s>",
        b"",
        b"e",
        b"<tool>",
        b"l",
    ]


@pytest.mark.parametrize("vocab_size", [40, 5000])
def test_a_model_may_have_fewer_or_more_tokens_than_its_tokenizer(vocab_size: int) -> None:
    vocabulary = Vocabulary.read(BUNDLED, vocab_size)
    assert len(vocabulary.texts) == vocab_size
    assert set(vocabulary.texts[4096:]) <= {b""}


def test_a_folder_of_gpt_2_needs_no_tokenizer_json(tmp_path: Path) -> None:
    tokenizer = json.loads(byte_level_json(adds_bos=False))
    (tmp_path / "vocab.json").write_text(json.dumps(tokenizer["model"]["vocab"]), encoding="utf-8")
    merges = "\n".join(" ".join(pair) for pair in tokenizer["model"]["merges"])
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}\n", encoding="utf-8")
    vocabulary = Vocabulary.read(tmp_path, 400)
    for text in (*SAMPLES, *BYTE_SAMPLES):
        assert spelled(vocabulary, text) == text


def test_a_folder_without_a_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match=r"vocab\.json"):
        Vocabulary.read(tmp_path, 10)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["bytes", "fallback"])
def test_forms_hold_over_any_kind_of_vocabulary(tmp_path: Path, backend: str, kind: str) -> None:
    if kind == "bytes":
        make_tokenizer(512).save_pretrained(tmp_path)
    else:
        folder_with(tmp_path, byte_fallback_json())
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab_size() <= 512
    model = Model(folder=tmp_path, vocab_size=517, eos_token_ids=(2,))
    texts = model.vocabulary().texts
    grammar = compiled(model.compiler(backend), choice=("hello hello", "é 你"))
    assert {text_of(walk(grammar, model, texts, seed), texts) for seed in range(20)} == {
        "hello hello",
        "é 你",
    }


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "unigram_with_bytes", "unigram"])
def test_added_tokens_are_spelled_as_answers_spell_them(tmp_path: Path, kind: str) -> None:
    tokenizer = Tokenizer.from_str(tokenizer_json(kind))
    added = ["▁▁", "é", "Ġx", "<a▁b>"]
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    vocabulary = Vocabulary.read(folder_with(tmp_path, tokenizer.to_str()), 1000)
    decoder = TokenDecoder(tokenizer)
    for text in added:
        (token_id,) = tokenizer.encode(text, add_special_tokens=False).ids
        assert vocabulary.texts[token_id] == decoder.token_bytes(token_id), text
