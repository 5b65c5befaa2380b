"""Moving a model between devices: every tensor is found once, and stays shared."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from baton_engine.engine_settings import EngineSettings
from baton_engine.loading import load_model
from baton_engine.tensor_moves import find_tensors, move_tensors
from tests.models import VARIANTS, make_model


class Slotted:
    __slots__ = ("tensor", "unset")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@dataclass(frozen=True, slots=True)
class Value:
    tensor: Tensor


def test_tensors_are_found_wherever_they_are_kept() -> None:
    tensors = [torch.zeros(number + 1) for number in range(8)]
    root = {
        "list": [tensors[0], (tensors[1],)],
        "partial": partial(torch.add, tensors[2], other=tensors[3]),
        "slots": Slotted(tensors[4]),
        "value": Value(tensors[5]),
        "again": tensors[0],
        "method": Slotted(tensors[6]).__init__,
        "others": [1, "a", None, torch.float32, Slotted],
        "tuple": namedtuple("Pair", "left right")(tensors[7], 0),
    }
    assert sorted(len(tensor) for tensor in find_tensors(root)) == list(range(1, 9))


@pytest.mark.parametrize("variant", ["llama", "gemma3", "qwen3-moe", "gpt2"])
def test_a_loaded_model_keeps_nothing_elsewhere(variant: str, tmp_path: Path) -> None:
    assert variant in VARIANTS
    model = load_model(EngineSettings(model=str(make_model(tmp_path / variant, variant)))).model
    found = {id(tensor) for tensor in find_tensors(model)}
    weights = sum(tensor.nbytes for tensor in find_tensors(model))
    on_disk = (tmp_path / variant / "model.safetensors").stat().st_size
    assert weights > 0.9 * on_disk
    pointers = {tensor.data_ptr() for tensor in find_tensors(model)}
    assert move_tensors(model, "cpu") == weights
    assert {id(tensor) for tensor in find_tensors(model)} == found
    assert {tensor.data_ptr() for tensor in find_tensors(model)} == pointers


def test_shared_tensors_stay_shared() -> None:
    weight = nn.Parameter(torch.ones(3))
    layers = [partial(torch.add, weight), {"head": weight}]
    move_tensors(layers, torch.device("cpu"))
    with torch.no_grad():
        weight += 1
    assert all(tensor is weight for tensor in find_tensors(layers))
