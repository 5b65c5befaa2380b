"""A fixture written by a version of llmcompressor that still had groups in the order of activations.

The reference is Transformers' import with `run_compressed=False`. Older versions write other config.json: the
model has biases, a head of its own and an odd number of words.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import torch
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import GPTQModifier
from transformers import AutoModelForCausalLM, CompressedTensorsConfig

from tools.quantized_fixtures.base_models import calibration_ids, make_biased_llama, make_tokenizer
from tools.quantized_fixtures.fixture import produce, write_expected

WEIGHTS: Final = {
    "num_bits": 4,
    "type": "int",
    "strategy": "group",
    "group_size": 32,
    "symmetric": True,
    "actorder": "group",
}


def _make(folder: Path) -> None:
    model = make_biased_llama()
    ids, tokenizer = calibration_ids(16, 64).tolist(), make_tokenizer()
    with tempfile.TemporaryDirectory() as unquantized:
        model.save_pretrained(unquantized)
        tokenizer.save_pretrained(unquantized)
        model = AutoModelForCausalLM.from_pretrained(unquantized, torch_dtype=torch.bfloat16)
        groups = {"group_0": {"targets": ["Linear"], "weights": WEIGHTS}}
        oneshot(
            model=model,
            recipe=GPTQModifier(config_groups=groups, ignore=["lm_head"]),
            dataset=Dataset.from_dict({"input_ids": ids, "attention_mask": [[1] * 64] * len(ids)}),
            num_calibration_samples=len(ids),
            max_seq_length=64,
            tokenizer=tokenizer,
        )
        model.save_pretrained(folder, save_compressed=True)
    config = CompressedTensorsConfig(run_compressed=False)
    reference = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=config, torch_dtype=torch.bfloat16
    )
    weights = {
        name: layer.weight
        for name, layer in reference.named_modules()
        if isinstance(layer, torch.nn.Linear) and hasattr(layer, "quantization_scheme")
    }
    write_expected(folder, "llmcompressor", "W4A16, groups of 32 in the order of activations", weights)


FIXTURES: Final = {"ct-w4a16-actorder": _make}

if __name__ == "__main__":
    produce(FIXTURES)
