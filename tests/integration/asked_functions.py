"""Functions that operators name in tests of controls."""

from __future__ import annotations

import os

from torch import Tensor, nn

from baton_engine.steps.decode_replay import DecodeReplay
from baton_engine.steps.runner import ModelRunner


def num_weights(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def block_size(runner: ModelRunner, factor: int = 1) -> int:
    return runner.spec.block_size * factor


def give_a_tensor(runner: ModelRunner) -> Tensor:
    return runner.kv_pool[0]


def give_much(runner: ModelRunner) -> str:
    return "x" * 100_000


def fail(runner: ModelRunner) -> None:
    raise ValueError("on purpose")


def process_id(runner: ModelRunner) -> tuple[int, int]:
    return runner.rank, os.getpid()


def variable(runner: ModelRunner, name: str) -> str:
    return os.environ.get(name, "")


def num_recorded(runner: ModelRunner) -> int:
    """Return the number of decode steps that are replayed."""
    return len(runner._captured._graphs) if isinstance(runner._captured, DecodeReplay) else 0


def first_block(runner: ModelRunner) -> float:
    """Return the largest number in the first block of the rank's pool."""
    return float(runner.kv_pool[0].abs().max())
