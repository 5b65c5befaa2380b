"""Fixtures written by bitsandbytes through Transformers: nf4, fp4, both with double quantization, int8.

The reference is bitsandbytes' own dequantization, in float32.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import torch
from bitsandbytes import functional
from bitsandbytes.functional import dequantize_4bit, int8_vectorwise_dequant
from torch import Tensor
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from tools.quantized_fixtures.base_models import make_llama
from tools.quantized_fixtures.fixture import produce, write_expected

PACKAGE: Final = "bitsandbytes"


def _make(folder: Path, scheme: str, *, block: int = 64, **settings: Any) -> None:
    """Write a checkpoint. Transformers asks for blocks of 64 alone; bitsandbytes has others."""
    in_blocks = functional.quantize_4bit

    def quantize(weight: Tensor, **options: Any) -> Any:
        return in_blocks(weight, **{**options, "blocksize": block})

    with tempfile.TemporaryDirectory() as unquantized, patch.object(functional, "quantize_4bit", quantize):
        make_llama().save_pretrained(unquantized)
        model = AutoModelForCausalLM.from_pretrained(
            unquantized,
            quantization_config=BitsAndBytesConfig(**settings),
            device_map="cpu",
            dtype=torch.float32,
        )
    model.save_pretrained(folder)
    weights = {}
    for name, layer in model.named_modules():
        weight = getattr(layer, "weight", None)
        if hasattr(weight, "quant_state"):
            weights[name] = dequantize_4bit(weight.data, weight.quant_state).float()
        elif hasattr(weight, "SCB"):
            weights[name] = int8_vectorwise_dequant(weight.data, weight.SCB.float())
    write_expected(folder, PACKAGE, scheme, weights)


FIXTURES: Final[dict[str, Callable[[Path], None]]] = {
    "bnb-nf4": partial(_make, scheme="nf4", load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    "bnb-nf4-double": partial(
        _make,
        scheme="nf4, double quantization",
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
    ),
    "bnb-fp4": partial(_make, scheme="fp4", load_in_4bit=True, bnb_4bit_quant_type="fp4"),
    "bnb-fp4-double-128": partial(
        _make,
        scheme="fp4, blocks of 128, double quantization",
        block=128,
        load_in_4bit=True,
        bnb_4bit_quant_type="fp4",
        bnb_4bit_use_double_quant=True,
    ),
    "bnb-int8": partial(_make, scheme="int8", load_in_8bit=True),
}

if __name__ == "__main__":
    produce(FIXTURES)
