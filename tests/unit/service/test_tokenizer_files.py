"""Hashes of the tokenizers in folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from baton_core.errors import InvalidModelError
from baton_service.tokenizer_files import read_tokenizer_digest
from tests.unit.router.folders import byte_level_json


def test_a_tokenizer_has_one_hash_however_its_file_is_written(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(byte_level_json(adds_bos=False))
    before = read_tokenizer_digest(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()), indent=4, sort_keys=True, ensure_ascii=True))
    assert read_tokenizer_digest(tmp_path) == before
    path.write_text(byte_level_json(adds_bos=True))
    assert read_tokenizer_digest(tmp_path) != before


def test_a_tokenizer_of_two_files_has_a_hash_of_both(tmp_path: Path) -> None:
    vocabulary, merges = tmp_path / "vocab.json", tmp_path / "merges.txt"
    assert read_tokenizer_digest(tmp_path) == ""
    vocabulary.write_text('{"a": 0, "b": 1, "ab": 2}')
    assert read_tokenizer_digest(tmp_path) == ""
    merges.write_text("#version: 0.2\na b\n")
    before = read_tokenizer_digest(tmp_path)
    vocabulary.write_text('{"ab":2,"b":1,"a":0}')
    merges.write_text("a b")
    assert read_tokenizer_digest(tmp_path) == before
    merges.write_text("b a")
    assert read_tokenizer_digest(tmp_path) != before


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"[1]", "holds list"),
        (b"{", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"a": "\xff"}', "is not JSON"),
    ],
)
def test_a_broken_file_is_refused_by_name(tmp_path: Path, content: bytes, error: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(InvalidModelError, match=f"{path} {error}"):
        read_tokenizer_digest(tmp_path)
