"""Run Triton's attention on the CPU, in its interpreter, and print each case's largest error as JSON.

`TRITON_INTERPRET=1 python -m tests.unit.kernels.interpreted_decode`: a process of its own, because kernels
read the variable when they are defined. A case costs about 4 ms per program and tile.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch

from baton_kernels.reference import attend_reference
from tests.unit.kernels.paged_batches import LAYER, make_paged_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    slices: tuple[tuple[int, int], ...]
    """(query length, context length) pairs."""
    tolerance: float = 1e-5
    window: int | None = None
    shape: dict[str, Any] = field(default_factory=dict)


# An output of about 1 has an error of 2**-8 in bfloat16, 2**-11 in float16, and so have the weights.
CASES: Final = {
    "odd_lengths": Case(slices=((1, 1), (1, 33), (1, 64), (1, 65))),
    "several_splits": Case(slices=((1, 1100), (1, 3), (1, 512)), shape={"group": 1, "num_kv_heads": 1}),
    "window_across_a_split": Case(slices=((1, 700), (1, 20)), window=300, shape={"block_size": 32}),
    "window_of_one": Case(slices=((1, 130), (1, 1)), window=1),
    "chunks_between_decodes": Case(slices=((1, 40), (7, 7), (1, 9), (5, 23)), window=11),
    "groups_of_7": Case(slices=((1, 70), (1, 7)), shape={"group": 7, "head_dim": 64, "block_size": 16}),
    "groups_of_20": Case(slices=((1, 70),), shape={"group": 20, "num_kv_heads": 2}),
    "padded_head": Case(slices=((1, 70), (1, 7)), shape={"head_dim": 80}),
    "wide_head": Case(slices=((1, 70),), shape={"head_dim": 256}),
    "bfloat16": Case(
        slices=((1, 200), (1, 6)), tolerance=2e-2, shape={"dtype": torch.bfloat16, "head_dim": 128}
    ),
    "float16": Case(slices=((1, 200), (1, 6)), tolerance=2e-3, shape={"dtype": torch.float16}),
}


def largest_error(case: Case) -> float:
    from baton_kernels.triton_decode import TritonAttention  # reads TRITON_INTERPRET

    step = make_paged_batch(case.slices, window=case.window, **case.shape)
    out = TritonAttention().attend(step.q, step.k, step.v, step.kv_pool, LAYER, step.batch, step.scale)
    expected = attend_reference(step.q, step.kv_pool, LAYER, step.batch, step.scale)
    return float((out.double() - expected).abs().max())


def mend_bfloat16_products() -> None:
    """The interpreter keeps bfloat16 as its bit patterns and multiplies those; give `dot` float32 instead."""
    import triton.language as tl
    from triton.runtime import interpreter

    def widened(operand: Any) -> Any:
        if operand.dtype.scalar != tl.bfloat16:
            return operand
        bits = operand.data.astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), tl.float32)

    create_dot = interpreter.InterpreterBuilder.create_dot

    def create_widened_dot(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
        return create_dot(builder, widened(a), widened(b), *rest)

    interpreter.InterpreterBuilder.create_dot = create_widened_dot


if __name__ == "__main__":
    torch.set_num_threads(1)
    mend_bfloat16_products()
    json.dump({name: largest_error(case) for name, case in CASES.items()}, sys.stdout)
