"""Functions that operators name in tests of controls."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from baton_engine.steps.runner import ModelRunner
from baton_engine.tensor_moves import find_tensors


def num_weights(model: Any) -> int:
    return sum(tensor.numel() for tensor in find_tensors(model))


def block_size(runner: ModelRunner, factor: int = 1) -> int:
    return runner.spec.block_size * factor


def give_a_tensor(runner: ModelRunner) -> Tensor:
    return runner.kv_pool[0]


def give_much(runner: ModelRunner) -> str:
    return "x" * 100_000


def fail(runner: ModelRunner) -> None:
    raise ValueError("on purpose")
