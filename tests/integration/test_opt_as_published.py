"""A model in the form of `facebook/opt-125m`: torch's weight file, GPT-2's tokenizer files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file

from baton import LLM, SamplingParams
from tests.models import make_model
from tests.reference import Reference
from tests.unit.router.test_byte_level_bpe import write_folder

NUM_TOKENS = 12


def as_published(original: Path, folder: Path) -> Path:
    """Copy a small OPT: weights under the bare model's names, no safetensors, no tokenizer.json."""
    shutil.copytree(original, folder)
    weights = folder / "model.safetensors"
    tensors = {name.replace("model.decoder.", "decoder."): t for name, t in load_file(weights).items()}
    torch.save(tensors, folder / "pytorch_model.bin")
    weights.unlink()
    (folder / "tokenizer.json").unlink()
    return write_folder(folder, json.loads((folder / "config.json").read_text()))


def test_text_is_continued_as_transformers_does(tmp_path: Path) -> None:
    original = make_model(tmp_path / "original", "opt", max_position_embeddings=128)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    with LLM(str(as_published(original, tmp_path / "published")), dtype="float32") as llm:
        (output,) = llm.generate(["the cat sat"], params, use_tqdm=False)
    assert output.prompt_token_ids[0] == 2, "the BOS token stands in front"
    tokens, _ = Reference(original).generate(output.prompt_token_ids, NUM_TOKENS)
    assert list(output.outputs[0].token_ids) == tokens
