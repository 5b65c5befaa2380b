"""Fixtures written by NVIDIA's ModelOpt: FP8 and NVFP4.

The reference is ModelOpt's own dequantization of the exported tensors, in float32.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from tools.quantized_fixtures.base_models import calibration_ids, make_llama, make_qwen3_moe
from tools.quantized_fixtures.fixture import produce, write_expected

PACKAGE: Final = "nvidia-modelopt"
make_thin_llama: Final = partial(make_llama, 64)


def _dequantize(tensors: dict[str, Tensor], name: str) -> Tensor:
    weight, scale = tensors[f"{name}.weight"], tensors[f"{name}.weight_scale"]
    if weight.dtype == torch.float8_e4m3fn:
        return FP8QTensor(weight.shape, torch.float32, weight).dequantize(scale=scale)
    shape = torch.Size((weight.shape[0], 2 * weight.shape[1]))
    return NVFP4QTensor(shape, torch.float32, weight).dequantize(
        scale=scale, double_scale=tensors[f"{name}.weight_scale_2"], block_sizes={-1: 16}
    )


def _make(
    folder: Path,
    scheme: str,
    config: dict[str, Any],
    base: Callable[[], PreTrainedModel] = make_thin_llama,
) -> None:
    with tempfile.TemporaryDirectory() as source:
        base().save_pretrained(source)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).eval()
    batches = calibration_ids(16, 64)
    mtq.quantize(model, config, lambda calibrated: calibrated(batches))
    export_hf_checkpoint(model, export_dir=folder)
    tensors = load_file(folder / "model.safetensors")
    names = [name.removesuffix(".weight_scale") for name in tensors if name.endswith(".weight_scale")]
    write_expected(folder, PACKAGE, scheme, {name: _dequantize(tensors, name) for name in names})


FIXTURES: Final[dict[str, Callable[[Path], None]]] = {
    "modelopt-fp8": partial(_make, scheme="FP8_DEFAULT_CFG", config=mtq.FP8_DEFAULT_CFG),
    "modelopt-nvfp4": partial(_make, scheme="NVFP4_DEFAULT_CFG", config=mtq.NVFP4_DEFAULT_CFG),
    "modelopt-nvfp4-qwen3-moe": partial(
        _make, scheme="NVFP4_DEFAULT_CFG, experts", config=mtq.NVFP4_DEFAULT_CFG, base=make_qwen3_moe
    ),
}

if __name__ == "__main__":
    produce(FIXTURES)
