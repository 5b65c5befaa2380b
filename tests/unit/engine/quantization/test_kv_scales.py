"""Scales of a KV cache of 8-bit floats, under the names that each family has for its attention."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton_core.errors import InvalidModelError
from baton_engine.engine_settings import EngineSettings
from baton_engine.loading import load_model

ATTENTION = {
    "llama": "model.layers.1.self_attn",
    "opt": "model.decoder.layers.1.self_attn",
    "gpt2": "transformer.h.1.attn",
}


def scales_of(folder: Path, copy: Path, numbers: dict[str, float]) -> tuple[tuple[float, float], ...]:
    shutil.copytree(folder, copy)
    tensors = load_file(folder / "model.safetensors")
    scales = {name: torch.tensor([number]) for name, number in numbers.items()}
    save_file({**tensors, **scales}, copy / "model.safetensors")
    return load_model(EngineSettings(model=str(copy), kv_cache_dtype="fp8")).kv_spec.scales


@pytest.mark.parametrize("variant", ATTENTION)
def test_scales_are_those_of_the_layer(
    variant: str, model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    names = [f"{ATTENTION[variant]}.{part}" for part in ("k_scale", "attn.v_scale")]
    numbers = dict(zip(names, (0.5, 0.25), strict=True))
    assert scales_of(model_folder(variant), tmp_path / "model", numbers) == ((1.0, 1.0), (0.5, 0.25))


def test_a_scale_that_is_not_above_zero_is_refused(
    model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    name = f"{ATTENTION['llama']}.k_scale"
    with pytest.raises(InvalidModelError, match=rf"{name} is 0\.0; allowed: a number above 0"):
        scales_of(model_folder("llama"), tmp_path / "model", {name: 0.0})
