"""Small tokenizers of every kind that models come with, each with special and with added tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from tests.unit.router.folders import byte_fallback_json, byte_level_json

_SPECIAL: Final = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
_BYTES: Final = [f"<0x{byte:02X}>" for byte in range(256)]
_PIECES: Final = ["▁", *"abehlors", "▁he", "▁hello", "llo", "你", "▁世", "é", ".", "▁a", "▁▁", "�"]


def byte_level() -> Backend:
    """GPT-2's and most newer models'."""
    return Backend.from_str(byte_level_json(adds_bos=False))


def byte_fallback() -> Backend:
    """Llama 2's: the first space of a text is stripped."""
    return Backend.from_str(byte_fallback_json())


def byte_fallback_unstripped() -> Backend:
    """Gemma's: like Llama 2's, but the first space stays."""
    backend = byte_fallback()
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return backend


def unigram() -> Backend:
    """T5's: SentencePiece, decoded by `Metaspace`."""
    vocabulary = [("<unk>", 0.0), *((piece, -float(index)) for index, piece in enumerate(_PIECES, start=1))]
    backend = Backend(models.Unigram(vocabulary, unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return backend


def unigram_with_bytes() -> Backend:
    """SentencePiece with byte fallback."""
    pieces = ["<unk>", *_BYTES, *_PIECES]
    vocabulary = [(piece, -float(index)) for index, piece in enumerate(pieces)]
    backend = Backend(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def word_piece() -> Backend:
    """BERT's, which writes no space before punctuation."""
    pieces = ["[UNK]", "hello", "##llo", "he", "##s", ".", "!", "'", "n't", "do", "你", "##é", "'s"]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    backend = Backend(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=True)
    return backend


def word_level() -> Backend:
    """Words without a decoder: spaces stand between all tokens."""
    words = ["[UNK]", "hello", "world", "st", "op", "你", "."]
    backend = Backend(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return backend


def suffixed() -> Backend:
    """GPT's first: the last piece of a word is marked, and no space follows the last word."""
    pieces = ["<unk>", *"helo", "hello</w>", "lo</w>", "h</w>", "st", "op</w>"]
    backend = Backend(models.BPE({piece: index for index, piece in enumerate(pieces)}, [], unk_token="<unk>"))
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    return backend


KINDS: Final[dict[str, Callable[[], Backend]]] = {
    build.__name__: build
    for build in (
        *(byte_level, byte_fallback, byte_fallback_unstripped, unigram, unigram_with_bytes),
        *(word_piece, word_level, suffixed),
    )
}


@cache
def tokenizer_json(kind: str) -> str:
    """Return a tokenizer with four special tokens, and two added ones that are not special."""
    backend = KINDS[kind]()
    backend.add_special_tokens(list(_SPECIAL))
    backend.add_tokens([AddedToken("<tool>", special=False), AddedToken("naïve word", special=False)])
    return backend.to_str()
