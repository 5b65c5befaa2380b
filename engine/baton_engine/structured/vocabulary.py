"""The bytes that each token of a model stands for, read from its folder's tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.config_fields import read_json_object

_BYTE_PIECE: Final = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE_PIECE: Final = "▁"
_BYTE_LEVEL_FILES: Final = ("vocab.json", "merges.txt")
"""GPT-2's, in folders without tokenizer.json."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Vocabulary:
    """Every token id that a model has a logit for."""

    texts: tuple[bytes, ...]
    """By id; empty for special tokens, which are no text, and for ids without a token."""
    marks: Mapping[int, bytes]
    """Spellings of the special tokens."""
    tokenizer: Tokenizer

    @classmethod
    def read(cls, folder: Path, vocab_size: int) -> Vocabulary:
        """Read the tokenizer of a model's folder.

        Args:
            vocab_size: the model's, which may be larger or smaller than the tokenizer's.

        Raises:
            InvalidModelError: a file is missing or broken.
        """
        tokenizer = _read_tokenizer(folder)
        spell = _speller(_types_within(json.loads(tokenizer.to_str())["decoder"]))
        texts = [b""] * vocab_size
        for piece, token_id in tokenizer.get_vocab(with_added_tokens=False).items():
            if token_id < vocab_size:
                texts[token_id] = spell(piece)
        marks: dict[int, bytes] = {}
        named = _named_special_tokens(folder)
        for token_id, added in tokenizer.get_added_tokens_decoder().items():
            if token_id < vocab_size:
                texts[token_id] = spell(added.content)
                if added.special:
                    named = named | {added.content}
        for content in named:
            special_id = tokenizer.token_to_id(content)
            if special_id is not None and special_id < vocab_size:
                texts[special_id], marks[special_id] = b"", content.encode()
        return cls(texts=tuple(texts), marks=marks, tokenizer=tokenizer)

    def texts_with_marks(self, without: Collection[int]) -> list[bytes]:
        """As `texts`, but special tokens, those in `without` excepted, have their spelling."""
        texts = list(self.texts)
        for token_id, spelling in self.marks.items():
            if token_id not in without:
                texts[token_id] = spelling
        return texts


class _ByteLevelSpeller:
    """Spells what byte-level BPE writes with one printable character for each byte."""

    def __init__(self) -> None:
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in printable]
        self._bytes = {chr(byte): byte for byte in printable}
        self._bytes |= {chr(256 + index): byte for index, byte in enumerate(others)}
        assert self._bytes.keys() == set(pre_tokenizers.ByteLevel.alphabet())

    def __call__(self, piece: str) -> bytes:
        try:
            return bytes(self._bytes[character] for character in piece)
        except KeyError:
            return piece.encode()


def _spell_piece(piece: str) -> bytes:
    if match := _BYTE_PIECE.fullmatch(piece):
        return bytes.fromhex(match[1])
    return piece.replace(_SPACE_PIECE, " ").encode()


def _speller(decoder_types: Collection[str]) -> Callable[[str], bytes]:
    """Return a function from pieces to bytes, which looks at no neighbours.

    Raises:
        InvalidModelError: the bytes of a piece depend on its neighbours.
    """
    if "ByteLevel" in decoder_types:
        return _ByteLevelSpeller()
    if {"ByteFallback", "Metaspace", "Replace"} & set(decoder_types):
        return _spell_piece
    if "Fuse" in decoder_types:
        return str.encode
    raise InvalidModelError(
        f"structured outputs: the tokenizer's decoder is {', '.join(sorted(decoder_types)) or None}; "
        "allowed: one with ByteLevel, ByteFallback, Metaspace or Fuse"
    )


def _types_within(decoder: Mapping[str, Any] | None) -> set[str]:
    if decoder is None:
        return set()
    inner = (_types_within(each) for each in decoder.get("decoders", ()))
    return {str(decoder["type"])}.union(*inner)


def _read_tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    try:
        if path.is_file():
            tokenizer = Tokenizer.from_file(str(path))
        else:
            path = folder / _BYTE_LEVEL_FILES[0]
            tokenizer = Tokenizer(BPE.from_file(*(str(folder / name) for name in _BYTE_LEVEL_FILES)))
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.decoder = decoders.ByteLevel()
    except Exception as error:  # the library raises nothing narrower
        raise InvalidModelError(
            f"{path} cannot be loaded ({error}); allowed: a file of the tokenizers library, "
            f"or {' and '.join(_BYTE_LEVEL_FILES)}"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _named_special_tokens(folder: Path) -> frozenset[str]:
    """Spellings that the folder's other files name, as `eos_token` and the like."""
    contents = set[str]()
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if not (folder / name).is_file():
            continue
        for key, value in read_json_object(folder / name).items():
            if key.endswith("_token"):
                contents.add(_content(value))
            elif key in ("additional_special_tokens", "extra_special_tokens"):
                several = value.values() if isinstance(value, dict) else value or ()
                contents |= set(map(_content, several))
    return frozenset(contents - {""})


def _content(token: object) -> str:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""
