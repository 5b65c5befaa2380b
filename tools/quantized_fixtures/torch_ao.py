"""Fixtures written by torchao through Transformers: 8-bit integers and floats, and 4-bit integers in bytes.

The reference is torchao's own dequantization. torchao refuses to quantize for rounded inputs of 8-bit floats
without a GPU; with that check left out it does on a CPU.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torchao.quantization import (
    Float8DynamicActivationFloat8WeightConfig,
    Float8WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    PerGroup,
    PerRow,
    PerTensor,
    quant_api,
)
from torchao.utils import TorchAOBaseTensor
from transformers import AutoModelForCausalLM, TorchAoConfig

from tools.quantized_fixtures.base_models import make_llama
from tools.quantized_fixtures.fixture import produce, write_expected

PACKAGE: Final = "torchao"


def _make(folder: Path, scheme: str, make_config: Callable[[], Any]) -> None:
    quant_api._check_hardware_support = lambda granularities: None
    with tempfile.TemporaryDirectory() as unquantized:
        make_llama().save_pretrained(unquantized)
        model = AutoModelForCausalLM.from_pretrained(
            unquantized,
            quantization_config=TorchAoConfig(quant_type=make_config()),
            dtype=torch.bfloat16,
            device_map="cpu",
        )
    model.save_pretrained(folder)
    weights = {
        name: layer.weight.dequantize()
        for name, layer in model.named_modules()
        if isinstance(getattr(layer, "weight", None), TorchAOBaseTensor)
    }
    write_expected(folder, PACKAGE, scheme, weights)


FIXTURES: Final[dict[str, Callable[[Path], None]]] = {
    "torchao-int8": partial(
        _make,
        scheme="int8 weights in groups of 64",
        make_config=partial(Int8WeightOnlyConfig, granularity=PerGroup(64)),
    ),
    "torchao-int8-int8": partial(
        _make, scheme="int8 inputs, int8 weights", make_config=Int8DynamicActivationInt8WeightConfig
    ),
    "torchao-int4": partial(
        _make,
        scheme="int4 weights in groups of 64",
        make_config=partial(IntxWeightOnlyConfig, weight_dtype=torch.int4, granularity=PerGroup(64)),
    ),
    "torchao-int8-int4": partial(
        _make,
        scheme="int8 inputs, int4 weights in groups of 32",
        make_config=partial(
            Int8DynamicActivationIntxWeightConfig, weight_dtype=torch.int4, weight_granularity=PerGroup(32)
        ),
    ),
    "torchao-fp8": partial(_make, scheme="fp8 weights", make_config=Float8WeightOnlyConfig),
    "torchao-fp8-fp8": partial(
        _make,
        scheme="fp8 inputs, fp8 weights, per row",
        make_config=partial(Float8DynamicActivationFloat8WeightConfig, granularity=PerRow()),
    ),
    "torchao-fp8-tensor": partial(
        _make,
        scheme="fp8 inputs, fp8 weights, per tensor",
        make_config=partial(Float8DynamicActivationFloat8WeightConfig, granularity=PerTensor()),
    ),
}

if __name__ == "__main__":
    produce(FIXTURES)
