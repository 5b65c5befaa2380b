"""Tokenizers that are published as vocab.json and merges.txt, as OPT's is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from baton_core.errors import InvalidModelError
from baton_router.text.model_folder import read_model_folder
from baton_router.text.tokenization import Tokenizer
from tests.unit.router.folders import TEXTS

OPT: dict[str, Any] = {
    "tokenizer_class": "GPT2Tokenizer",
    "add_bos_token": True,
    "add_prefix_space": False,
    "errors": "replace",
    "bos_token": {"__type": "AddedToken", "content": "</s>", "normalized": True},
    "eos_token": {"__type": "AddedToken", "content": "</s>", "normalized": True},
    "unk_token": {"__type": "AddedToken", "content": "</s>", "normalized": True},
    "pad_token": "<pad>",
}


def write_folder(folder: Path, config: dict[str, Any], **tokenizer_config: Any) -> Path:
    """Train a small byte-level tokenizer and write it in GPT-2's form."""
    trained = Backend(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "<pad>", "</s>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    trained.train_from_iterator([*TEXTS, "the cat sat on the mat, that is what the cat did"] * 3, trainer)
    folder.mkdir(exist_ok=True)
    trained.model.save(str(folder))
    (folder / "config.json").write_text(json.dumps({"vocab_size": 400, "model_type": "opt"} | config))
    (folder / "tokenizer_config.json").write_text(json.dumps(OPT | tokenizer_config))
    return folder


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("adds_bos", [True, False])
def test_the_ids_are_those_of_transformers(adds_bos: bool, text: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"max_position_embeddings": 64}, add_bos_token=adds_bos)
    ours, theirs = Tokenizer(read_model_folder(folder)), AutoTokenizer.from_pretrained(folder)
    assert ours.encode(text) == tuple(theirs(text).input_ids)
    assert (ours.encode(text)[:1] == (2,)) == adds_bos
    assert ours.decode(ours.encode(text)) == text


def test_the_length_may_have_gpt2s_name(tmp_path: Path) -> None:
    assert read_model_folder(write_folder(tmp_path, {"n_positions": 48})).max_position_embeddings == 48


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt"])
def test_a_broken_file_is_refused(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"max_position_embeddings": 64})
    (folder / name).write_text("{}} broken")
    with pytest.raises(InvalidModelError, match=r"vocab\.json cannot be loaded"):
        Tokenizer(read_model_folder(folder))


def test_another_tokenizer_in_this_form_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"max_position_embeddings": 64}, tokenizer_class="Qwen2Tokenizer")
    with pytest.raises(InvalidModelError, match=r"tokenizer\.json is missing; .*of a GPT2Tokenizer"):
        read_model_folder(folder)
