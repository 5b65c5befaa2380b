"""Fixtures written by Transformers: fp8 with a scale for each 128 x 128 block.

Transformers refuses to quantize without a GPU; with that check left out it runs on a CPU. It leaves layers as
they are whose outputs are no multiple of 128. The reference is its own import with `dequantize=True`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, FineGrainedFP8Config
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

from tools.quantized_fixtures.base_models import make_llama
from tools.quantized_fixtures.fixture import produce, write_expected

PACKAGE: Final = "transformers"


def _make(folder: Path, intermediate_size: int = 256) -> None:
    def ignore(*_: Any, **__: Any) -> None:
        pass

    FineGrainedFP8HfQuantizer.validate_environment = ignore
    with tempfile.TemporaryDirectory() as unquantized:
        make_llama(intermediate_size).save_pretrained(unquantized)
        model = AutoModelForCausalLM.from_pretrained(
            unquantized, quantization_config=FineGrainedFP8Config(), dtype=torch.bfloat16, device_map="cpu"
        )
    model.save_pretrained(folder)
    stored = load_file(folder / "model.safetensors")
    codes = [name for name, tensor in stored.items() if tensor.dtype == torch.float8_e4m3fn]
    names = [name.removesuffix(".weight") for name in codes]
    reference = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=FineGrainedFP8Config(dequantize=True), dtype=torch.bfloat16
    )
    weights = {name: reference.get_submodule(name).weight for name in names}
    write_expected(folder, PACKAGE, "fp8, blocks of 128 x 128", weights)


FIXTURES: Final = {"transformers-fp8-block": _make}

if __name__ == "__main__":
    produce(FIXTURES)
