"""Draw tokens with Triton's sampling on the CPU, in its interpreter, and print them beside torch's as JSON.

`TRITON_INTERPRET=1 python -m tests.unit.kernels.interpreted_sampling`: a process of its own, because kernels
read the variable when they are defined.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

import torch
from torch import Tensor

from baton_kernels.interface.sampling import SampleBatch
from baton_kernels.reference.torch_sampling import TorchSampling

TILE: Final = 512
VOCAB_SIZE: Final = 1003
Row = dict[str, Any]

PLAIN: Final[Row] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def rows(*changes: Row) -> tuple[Row, ...]:
    return tuple({**PLAIN, **change} for change in changes)


MIXED: Final = rows(
    {"temperature": 0.0},
    {},
    {"temperature": 0.3},
    {"top_k": 5},
    {"top_p": 0.8, "temperature": 1.3},
    {"min_p": 0.05, "top_k": 50, "top_p": 0.95, "temperature": 2.0},
)
CASES: Final = {
    "wide": (2.0, torch.float32, MIXED),
    "peaked": (9.0, torch.float32, MIXED[3:]),
    "ties": (0.5, torch.bfloat16, rows({"top_k": 40}, {"top_p": 0.3}, {"top_k": 300, "top_p": 0.6})),
    "level": (0.0, torch.float32, rows({}, {"top_k": 7}, {"top_p": 0.01}, {"top_k": 9, "top_p": 0.5})),
    "boundary": (0.0, torch.float32, rows(*[{"top_k": 3, "top_p": 0.99}] * 4)),
    "edges": (2.0, torch.float16, rows({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}, {"temperature": 1e-4})),
}
"""Spread of the logits, their type, and how to draw from each row."""


def make_logits(spread: float, dtype: torch.dtype, num_rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(num_rows)
    return (torch.randn(num_rows, VOCAB_SIZE, generator=generator) * spread).to(dtype)


def make_batch(specs: tuple[Row, ...], seed: int) -> SampleBatch:
    columns = {name: [spec[name] for spec in specs] for name in PLAIN}
    seeds = [2**64 - 1 - seed - row * 2**40 for row in range(len(specs))]
    return SampleBatch.build(seeds=seeds, positions=[2**33 + row for row in range(len(specs))], **columns)


def draw_case(spread: float, dtype: torch.dtype, specs: tuple[Row, ...]) -> dict[str, list[int]]:
    from baton_kernels.triton.sampling import TritonSampling  # reads TRITON_INTERPRET

    logits = make_logits(spread, dtype, len(specs))
    batch = make_batch(specs, seed=0)
    return {
        "triton": TritonSampling(TILE).sample(logits, batch).tolist(),
        "torch": TorchSampling().sample(logits, batch).tolist(),
    }


def draw_broken_rows() -> dict[str, list[int]]:
    """Rows of one finite logit, of NaN, of +inf and of -inf, and with one NaN, beside an unharmed one."""
    from baton_kernels.triton.sampling import TritonSampling  # reads TRITON_INTERPRET

    logits = make_logits(2.0, torch.float32, 6)
    logits[0], logits[0, 700] = -torch.inf, -3.0
    logits[1], logits[2, 9] = torch.nan, torch.inf
    logits[4], logits[5, -1] = -torch.inf, torch.nan
    specs = rows({"temperature": 5.0}, {"top_k": 5}, {"top_p": 0.9}, {}, {}, {"temperature": 0.0})
    batch = make_batch(specs, seed=1)
    drawn = TritonSampling(TILE).sample(logits, batch).tolist()
    return {"triton": drawn, "torch": TorchSampling().sample(logits, batch).tolist()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    drawn = {name: draw_case(*case) for name, case in CASES.items()}
    json.dump({**drawn, "broken": draw_broken_rows()}, sys.stdout)
