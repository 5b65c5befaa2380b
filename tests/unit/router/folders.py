"""Builders of tiny model folders: everything the router reads, and no weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from baton_router.text.model_folder import read_model_folder
from baton_router.text.tokenization import Tokenizer

SPECIAL_TOKENS: Final = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE: Final = (
    "{{ bos_token }}{% for message in messages %}\n"
    "    {%- if message.role == 'system' and not loop.first %}\n"
    "        {{ raise_exception('System message must come first') }}\n"
    "    {%- endif %}\n"
    "<|im_start|>{{ message.role }}\n"
    "{{ message.content | trim }}<|im_end|>\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXTS: Final = (
    "hello world, the quick brown fox",
    "",
    "  two  spaces\n\ttab ",
    "naïve café — “quotes” e\u0301 n\u0303",
    "你好，世界。東京タワー",
    "👩\u200d👩\u200d👧\u200d👦 🇩🇪 😀😃 👍🏽",
    "<|im_start|>user\nhi<|im_end|>",
    "\u0000\ufffd\u2028",
)
_CORPUS: Final = ["hello world the quick brown fox", "你好世界 東京", "😀😃 👩\u200d👧 café"]


@cache
def byte_level_json(*, adds_bos: bool) -> str:
    """Return a byte-level BPE tokenizer whose merges cross the bytes of CJK characters and emoji."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(_CORPUS, trainer)
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", backend.token_to_id("<s>"))]
        )
    return backend.to_str()


def byte_level_token_id(byte: int) -> int:
    """Return the id of one byte's token: printable Latin-1 spells itself, the rest count up from U+0100."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [value for value in range(256) if value not in printable]
    spelling = chr(byte) if byte in printable else chr(256 + others.index(byte))
    token_id: int = Backend.from_str(byte_level_json(adds_bos=False)).token_to_id(spelling)
    return token_id


@cache
def byte_fallback_json() -> str:
    """Return a tokenizer as Llama 2's: spaces are `▁`, the first is stripped, the rest are bytes."""
    pieces = [*SPECIAL_TOKENS, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", *"abcdefghijklmnopqrstuvwxyz", "▁h", "▁hello", "he", "ll", "hell", "hello"]
    backend = Backend(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=[("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("▁", "hello")],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    return backend.to_str()


def write_model_folder(
    folder: Path,
    *,
    tokenizer_json: str | None = None,
    config: Mapping[str, Any] | None = None,
    generation_config: Mapping[str, Any] | None = None,
    tokenizer_config: Mapping[str, Any] | None = None,
    chat_template: str | None = CHAT_TEMPLATE,
) -> Path:
    """Write a folder that `read_model_folder` accepts; every argument replaces or extends one file."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {"vocab_size": 400, "max_position_embeddings": 128, "eos_token_id": 1}
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    files = {
        "config.json": json.dumps({**sizes, **(config or {})}),
        "tokenizer_config.json": json.dumps({**names, **(tokenizer_config or {})}),
        "tokenizer.json": tokenizer_json or byte_level_json(adds_bos=False),
    }
    if generation_config is not None:
        files["generation_config.json"] = json.dumps(generation_config)
    if chat_template is not None:
        files["chat_template.jinja"] = chat_template
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def make_tokenizer(folder: Path, **files: Any) -> Tokenizer:
    return Tokenizer(read_model_folder(write_model_folder(folder, **files)))
