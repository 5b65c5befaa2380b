"""Fixtures written by Transformers: fp8 with a scale for each 128 x 128 block.

Transformers refuses to quantize without a GPU; with that check left out it runs on a CPU. It leaves layers as
they are whose outputs are no multiple of 128. The reference is its own dequantization.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, FineGrainedFP8Config, PreTrainedModel
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, FP8Experts, FP8Linear
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

from tools.quantized_fixtures.base_models import make_llama, make_mixtral, make_qwen3_moe
from tools.quantized_fixtures.fixture import produce, write_expected

PACKAGE: Final = "transformers"
SCHEME: Final = "fp8, blocks of 128 x 128"


def _quantize(model: PreTrainedModel, folder: Path, **saving: Any) -> PreTrainedModel:
    """Save a model quantized, and return it as it was saved."""

    def ignore(*_: Any, **__: Any) -> None:
        pass

    with patch.object(FineGrainedFP8HfQuantizer, "validate_environment", ignore):
        with tempfile.TemporaryDirectory() as unquantized:
            model.save_pretrained(unquantized)
            quantized = AutoModelForCausalLM.from_pretrained(
                unquantized,
                quantization_config=FineGrainedFP8Config(),
                dtype=torch.bfloat16,
                device_map="cpu",
            )
        quantized.save_pretrained(folder, **saving)
    return quantized


def _make(folder: Path, intermediate_size: int = 256) -> None:
    _quantize(make_llama(intermediate_size), folder)
    stored = load_file(folder / "model.safetensors")
    codes = [name for name, tensor in stored.items() if tensor.dtype == torch.float8_e4m3fn]
    names = [name.removesuffix(".weight") for name in codes]
    reference = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=FineGrainedFP8Config(dequantize=True), dtype=torch.bfloat16
    )
    weights = {name: reference.get_submodule(name).weight for name in names}
    write_expected(folder, PACKAGE, SCHEME, weights)


def _make_mixture(
    folder: Path, make: Callable[[], PreTrainedModel], layers: tuple[str, str, str], is_fused: bool
) -> None:
    """Save a mixture; `layers` are the names of gate, up and down of an expert.

    Transformers dequantizes no such file while reading it: the reference is its dequantization of what it
    saved.
    """
    model = _quantize(make(), folder, save_original_format=not is_fused)
    dequantize = Fp8Dequantize(None)._dequantize_one
    weights = {}
    for path, module in model.named_modules():
        if isinstance(module, FP8Linear) and module.weight.dtype == torch.float8_e4m3fn:
            weights[path] = dequantize(module.weight, module.weight_scale_inv, torch.bfloat16)
        if isinstance(module, FP8Experts):
            gate_up = dequantize(module.gate_up_proj, module.gate_up_proj_scale_inv, torch.bfloat16)
            down = dequantize(module.down_proj, module.down_proj_scale_inv, torch.bfloat16)
            parts = zip(layers, (*gate_up.chunk(2, dim=1), down), strict=True)
            experts = path.replace(".mlp.", ".block_sparse_moe.") if layers == MIXTRAL else path
            weights |= {
                f"{experts}.{number}.{layer}": values[number]
                for layer, values in parts
                for number in range(len(values))
            }
    form = "fused experts" if is_fused else "fused scales of experts"
    write_expected(folder, PACKAGE, f"{SCHEME}, {form}", weights)


MIXTRAL: Final = ("w1", "w3", "w2")
PLAIN: Final = ("gate_proj", "up_proj", "down_proj")
FIXTURES: Final = {
    "transformers-fp8-block": _make,
    "transformers-fp8-block-mixtral": partial(
        _make_mixture, make=make_mixtral, layers=MIXTRAL, is_fused=False
    ),
    "transformers-fp8-block-qwen3-moe": partial(
        _make_mixture,
        make=partial(make_qwen3_moe, head_dim=64, num_experts=3, moe_intermediate_size=256),
        layers=PLAIN,
        is_fused=True,
    ),
}

if __name__ == "__main__":
    produce(FIXTURES)
