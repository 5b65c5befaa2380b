"""Writes small models that pool with sentence-transformers, and what it computes with them.

Run in an environment with sentence-transformers 6.2.0 and transformers 5.23.0:
`python -m tools.pooling_fixtures FOLDER [NAME ...]`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3Model,
    XLMRobertaConfig,
    XLMRobertaModel,
)

PACKAGES: Final = ("sentence-transformers", "transformers", "torch")
SPECIAL: Final = ("[CLS]", "[PAD]", "[SEP]", "[UNK]")
WORDS: Final = (*SPECIAL, *(f"w{number}" for number in range(58)), "no", "yes")
SIZES: Final = {
    "vocab_size": len(WORDS),
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
}
QWEN: Final = {"num_key_value_heads": 2, "head_dim": 8}
MODERN: Final = {"local_attention": 8, "cls_token_id": 0, "sep_token_id": 2}
TEXTS: Final = (
    "w1 w2 w3",
    "w40",
    " ".join(f"w{number * 7 % 58}" for number in range(40)),
    "yes w4 no w5 w6 w7",
)
PAIRS: Final = tuple(zip(TEXTS, reversed(TEXTS), strict=True))


def _tokenizer(model_type: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer of words; decoders have only the end token behind a text."""
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if model_type == "bert" else [])]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    single, pair = "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"
    if model_type == "qwen3":
        single, pair = "$A [SEP]", "$A $B [SEP]"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[("[CLS]", 0), ("[SEP]", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",  # noqa: S106
        cls_token="[CLS]",  # noqa: S106
        sep_token="[SEP]",  # noqa: S106
        unk_token="[UNK]",  # noqa: S106
        model_max_length=64,
        model_input_names=names,
    )


def _transformer(model: PreTrainedModel, folder: str, task: str = "feature-extraction") -> Transformer:
    """Return a model of random weights, wide enough that each of them counts."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.7)
    model.save_pretrained(folder)
    _tokenizer(model.config.model_type).save_pretrained(folder)
    return Transformer(folder, transformer_task=task)


def _embeds(
    model: PreTrainedModel, *modules: torch.nn.Module, truncate_dim: int | None = None
) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as plain:
            chain = [_transformer(model, plain), *modules]
            made = SentenceTransformer(modules=chain, device="cpu", truncate_dim=truncate_dim)
            made.save(str(folder), create_model_card=False)
            vectors = made.encode(list(TEXTS), convert_to_tensor=True, batch_size=1)
            _write(folder, made.tokenizer(list(TEXTS)), vectors)

    return make


def _scores(
    model: PreTrainedModel, task: str = "sequence-classification", *modules: torch.nn.Module
) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as plain:
            made = CrossEncoder(modules=[_transformer(model, plain, task), *modules], device="cpu")
            made.save(str(folder), create_model_card=False)
            scores = made.predict(list(PAIRS), convert_to_tensor=True, batch_size=1)
            _write(folder, made.tokenizer([list(pair) for pair in PAIRS]), scores[:, None])

    return make


def _write(folder: Path, tokens: Mapping[str, Any], vectors: torch.Tensor) -> None:
    expected = {
        "producer": {package: version(package) for package in PACKAGES},
        "token_ids": tokens["input_ids"],
        "token_types": tokens.get("token_type_ids"),
        "vectors": vectors.tolist(),
    }
    lines = (f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in expected.items())
    (folder / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


FIXTURES: Final = {
    "bert-mean-dense-normalize": _embeds(
        BertModel(BertConfig(**SIZES)), Pooling(16, "mean"), Dense(16, 12), Normalize()
    ),
    "bert-mean-normalize-dense-cut": _embeds(
        BertModel(BertConfig(**SIZES)), Pooling(16, "mean"), Normalize(), Dense(16, 12), truncate_dim=8
    ),
    "xlm-roberta-cls": _embeds(
        XLMRobertaModel(XLMRobertaConfig(**SIZES, type_vocab_size=1)), Pooling(16, "cls")
    ),
    "modernbert-mean": _embeds(ModernBertModel(ModernBertConfig(**SIZES, **MODERN)), Pooling(16, "mean")),
    "qwen3-last-normalize": _embeds(
        Qwen3Model(Qwen3Config(**SIZES, **QWEN)), Pooling(16, "lasttoken"), Normalize()
    ),
    "bert-cross-encoder": _scores(BertForSequenceClassification(BertConfig(**SIZES, num_labels=1))),
    "qwen3-logit-score": _scores(
        Qwen3ForCausalLM(Qwen3Config(**SIZES, **QWEN)),
        "text-generation",
        LogitScore(true_token_id=WORDS.index("yes"), false_token_id=WORDS.index("no")),
    ),
}


def main() -> None:
    """Make the fixtures, each in a folder of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("names", nargs="*", choices=[*FIXTURES, []])
    arguments = parser.parse_args()
    for name in arguments.names or FIXTURES:
        folder = arguments.output / name
        shutil.rmtree(folder, ignore_errors=True)
        FIXTURES[name](folder)
        print(f"made {name}", flush=True)


if __name__ == "__main__":
    main()
