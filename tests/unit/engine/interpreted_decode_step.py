"""Decode steps on static, padded inputs, on interpreted Triton kernels, beside eager steps on the CPU's.

`TRITON_INTERPRET=1 python -m tests.unit.engine.interpreted_decode_step FOLDER`: prints, for each step, the
largest difference of the hidden states and of the cache, and what padding changed in the pool. The batches
are made once and filled again for each step, as a captured graph sees them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from baton_core.worker.step_plan import SequenceSlice
from baton_engine.checkpoint.weights import WeightReader
from baton_engine.models.registry import build_model, read_model_config
from baton_engine.models.step_attention import StepAttention
from baton_engine.steps.decode_inputs import DecodeInputs
from baton_engine.steps.runner import ModelRunner
from baton_kernels.interface.kernels import AttentionBatch
from baton_kernels.selection import select_kernels
from tests.unit.engine.steps import make_plan, make_runner, make_slice

SIZE: Final = 3
MAX_MODEL_LEN: Final = 48
PROMPTS: Final = {"a": (9, (5, 2, 9)), "b": (21, (0, 11, 3, 7)), "c": (1, (1, 4))}
"""Length and blocks of each sequence."""
STEPS: Final = (("a", "b"), ("c",))
"""The sequences that decode in each step: fewer than the inputs have room for, and never the same."""


def decode_slices(runner: ModelRunner, names: Sequence[str], lengths: dict[str, int]) -> list[SequenceSlice]:
    groups = len(runner.spec.groups)
    return [
        make_slice([7 + lengths[name]], PROMPTS[name][1], start=lengths[name], name=name, num_groups=groups)
        for name in names
    ]


def eager_hidden(runner: ModelRunner, slices: Sequence[SequenceSlice]) -> Tensor:
    """Return the results of the runner's own kernels, unpadded; writes to its pool."""
    batches = AttentionBatch.build_groups(
        query_lens=[1] * len(slices),
        context_lens=[piece.start + 1 for piece in slices],
        block_tables=list(zip(*(piece.block_tables for piece in slices), strict=True)),
        windows=[group.window for group in runner.spec.groups],
        block_size=runner.spec.block_size,
    )
    attention = StepAttention(select_kernels("cpu").attention, runner.kv_pool, runner.spec, batches)
    return runner.model.forward(torch.tensor([piece.token_ids[0] for piece in slices]), attention)


@torch.inference_mode()
def differences(folder: Path) -> list[dict[str, float]]:
    from baton_kernels.triton.attention import TritonAttention  # reads TRITON_INTERPRET
    from baton_kernels.triton.layers import TritonLayers

    runner = make_runner(folder)
    model = build_model(read_model_config(folder), WeightReader(folder, torch.float32), TritonLayers())
    for name, (length, blocks) in PROMPTS.items():
        groups = len(runner.spec.groups)
        prompt = [3 + 37 * position % 500 for position in range(length)]
        runner.execute(make_plan(make_slice(prompt, blocks, name=name, num_groups=groups)))
    pool = runner.kv_pool.clone()
    inputs = DecodeInputs(runner.spec, SIZE, MAX_MODEL_LEN)
    attention = StepAttention(TritonAttention(), pool, runner.spec, inputs.batches(SIZE))
    lengths = {name: length for name, (length, _) in PROMPTS.items()}
    report = []
    for names in STEPS:
        slices = tuple(decode_slices(runner, names, lengths))
        expected = eager_hidden(runner, slices)
        inputs.fill(slices, SIZE)
        hidden = model.forward(inputs.token_ids, attention)
        report.append(
            {
                "hidden": float((hidden[: len(slices)] - expected).abs().max()),
                "cache": float((pool - runner.kv_pool).nan_to_num().abs().max()),
                "slots touched by one alone": float((pool.isnan() != runner.kv_pool.isnan()).sum()),
                "broken rows": float((~hidden.isfinite()).sum()),
            }
        )
        for name in names:
            lengths[name] += 1
    return report


if __name__ == "__main__":
    torch.set_num_threads(1)
    json.dump(differences(Path(sys.argv[1])), sys.stdout)
