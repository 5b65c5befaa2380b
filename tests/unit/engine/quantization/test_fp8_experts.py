"""Experts that Transformers saves in blocks of 8-bit floats, with the scales of all in one tensor."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.quantization.fp8_experts import separate_fp8_experts
from baton_engine.checkpoint.weight_files import read_entries
from tests.quantized_reference import FIXTURES, quantized_weights


def test_codes_and_scales_of_an_expert_are_parts_of_the_fused_ones(tmp_path: Path) -> None:
    scales = torch.rand(3, 4, 5)
    codes = torch.rand(3, 8, 6).to(torch.float8_e4m3fn)
    path, prefix = tmp_path / "model.safetensors", "model.layers.0.mlp.experts"
    fused = {"gate_up_proj": codes, "gate_up_proj_scale_inv": scales}
    save_file({f"{prefix}.{name}": tensor for name, tensor in fused.items()}, path)
    separate = separate_fp8_experts(read_entries(path))
    assert len(separate) == 3 * 2 * 2
    content = path.read_bytes()
    for expert in range(3):
        for part, tensor in (("weight", codes), ("weight_scale_inv", scales)):
            for half, layer in enumerate(("gate_proj", "up_proj")):
                entry = separate[f"{prefix}.{expert}.{layer}.{part}"]
                wanted = tensor[expert].chunk(2)[half]
                assert entry.shape == wanted.shape
                stored = content[entry.offset : entry.offset + entry.num_bytes]
                assert stored == wanted.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("shape", [(3, 3, 1), (3, 2), (0, 2, 1)])
def test_scales_that_cannot_be_divided_are_refused_by_name(shape: tuple[int, ...], tmp_path: Path) -> None:
    """Three rows: gate and up of 192 outputs each share a block."""
    folder = Path(shutil.copytree(FIXTURES / "transformers-fp8-block-qwen3-moe", tmp_path / "model"))
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.experts.gate_up_proj_scale_inv"
    save_file({**tensors, name: torch.ones(shape)}, folder / "model.safetensors")
    with pytest.raises(
        InvalidModelError, match=f"tensor {name} has shape .*; allowed: three axes above 0, the"
    ):
        quantized_weights(folder)
