"""Fixtures written by bitsandbytes through Transformers: nf4, nf4 with double quantization, int8.

The reference is bitsandbytes' own dequantization, in float32.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from bitsandbytes.functional import dequantize_4bit, int8_vectorwise_dequant
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from tools.quantized_fixtures.base_models import make_llama
from tools.quantized_fixtures.fixture import produce, write_expected

PACKAGE: Final = "bitsandbytes"


def _make(folder: Path, scheme: str, **settings: Any) -> None:
    with tempfile.TemporaryDirectory() as unquantized:
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
    "bnb-int8": partial(_make, scheme="int8", load_in_8bit=True),
}

if __name__ == "__main__":
    produce(FIXTURES)
