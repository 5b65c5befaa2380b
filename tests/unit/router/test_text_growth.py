from __future__ import annotations

import time
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, normalizers

from baton_core.errors import InvalidModelError
from baton_router.text import tokenization
from baton_router.text.model_folder import read_model_folder
from baton_router.text.text_growth import MAX_GROWTH, check_growth
from tests.unit.router.folders import write_model_folder

GROWING = {
    "one": normalizers.Replace("a", "a" * 100),
    "one of an expression": normalizers.Replace(Regex("."), "a" * 100),
    "several": normalizers.Sequence([normalizers.Replace("a", "a" * 10) for _ in range(9)]),
    "within each other": normalizers.Sequence(
        [normalizers.Sequence([normalizers.Replace("a", "a" * 9)]), normalizers.Replace("a", "a" * 9)]
    ),
    "in front": normalizers.Prepend("a" * 5000),
    "in front, then more": normalizers.Sequence(
        [normalizers.Prepend("a" * 900), normalizers.Replace("a", "aaaaa")]
    ),
}
USUAL = {
    "sentencepiece": normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
    "quotes": normalizers.Sequence(
        [
            normalizers.Replace("``", '"'),
            normalizers.NFKC(),
            normalizers.Lowercase(),
            normalizers.StripAccents(),
        ]
    ),
    "spaces": normalizers.Replace(Regex(" {2,}"), " "),
    "none": None,
}


def tokenizer_of(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("normalizer", GROWING.values(), ids=GROWING)
def test_a_tokenizer_that_makes_texts_grow_is_refused_when_it_is_loaded(
    tmp_path: Path, normalizer: normalizers.Normalizer
) -> None:
    write_model_folder(tmp_path)
    tokenizer = tokenizer_of(tmp_path)
    tokenizer.normalizer = normalizer
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    began_s = time.monotonic()
    with pytest.raises(
        InvalidModelError, match=r"tokenizer\.json: normalizer can make .*allowed: 64 and 4096"
    ):
        tokenization.Tokenizer(read_model_folder(tmp_path))
    assert time.monotonic() - began_s < 60.0


def test_a_decoder_that_makes_texts_grow_is_refused_too(tmp_path: Path) -> None:
    write_model_folder(tmp_path)
    tokenizer = tokenizer_of(tmp_path)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("a", "a" * 10), decoders.Replace("a", "a" * 10)])
    with pytest.raises(InvalidModelError, match="decoder can make 100 characters"):
        check_growth("tokenizer.json", tokenizer)


@pytest.mark.parametrize(
    "decoder", [decoders.BPEDecoder(suffix=""), decoders.CTC(word_delimiter_token=""), decoders.CTC("")]
)
def test_a_decoder_that_replaces_nothing_by_something_is_refused(
    tmp_path: Path, decoder: decoders.Decoder
) -> None:
    write_model_folder(tmp_path)
    tokenizer = tokenizer_of(tmp_path)
    tokenizer.decoder = decoders.Sequence([decoder])
    with pytest.raises(InvalidModelError, match="decoder can make inf characters"):
        check_growth("tokenizer.json", tokenizer)


@pytest.mark.parametrize("normalizer", USUAL.values(), ids=USUAL)
def test_usual_normalizers_are_taken(tmp_path: Path, normalizer: normalizers.Normalizer | None) -> None:
    write_model_folder(tmp_path)
    tokenizer = tokenizer_of(tmp_path)
    tokenizer.normalizer = normalizer
    check_growth("tokenizer.json", tokenizer)


@pytest.mark.parametrize("content", ["b", "bb", "bbbbb"])
def test_what_is_reckoned_is_never_less_than_what_comes(tmp_path: Path, content: str) -> None:
    write_model_folder(tmp_path)
    for pattern in ("a", Regex("a"), Regex("a?"), Regex("")):
        grown = normalizers.Replace(pattern, content).normalize_str("a" * 1000)
        bound = 1 + 2 * len(content) if isinstance(pattern, Regex) else len(content)
        assert len(grown) <= 1000 * min(bound, MAX_GROWTH) + len(content)
