"""Fixtures written by NVIDIA's Model Optimizer: fp8 and NVFP4.

The reference is the weight that its quantizers round to in the float model, in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint

from tools.quantized_fixtures.base_models import calibration_ids, make_llama
from tools.quantized_fixtures.fixture import produce, write_expected

PACKAGE: Final = "nvidia-modelopt"


def _make(folder: Path, scheme: str, config: Any) -> None:
    def calibrate(model: torch.nn.Module) -> None:
        for ids in calibration_ids(8, 64):
            model(ids[None])

    model = mtq.quantize(make_llama(), config, calibrate)
    weights = {
        name: layer.weight_quantizer(layer.weight.detach().float())
        for name, layer in model.named_modules()
        if getattr(getattr(layer, "weight_quantizer", None), "is_enabled", False)
    }
    export_hf_checkpoint(model, export_dir=folder)
    write_expected(folder, PACKAGE, scheme, weights)


FIXTURES: Final[dict[str, Callable[[Path], None]]] = {
    "modelopt-fp8": partial(_make, scheme="FP8", config=mtq.FP8_DEFAULT_CFG),
    "modelopt-nvfp4": partial(_make, scheme="NVFP4", config=mtq.NVFP4_DEFAULT_CFG),
}

if __name__ == "__main__":
    produce(FIXTURES)
