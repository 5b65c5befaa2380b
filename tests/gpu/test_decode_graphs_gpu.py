"""A model on a GPU: captured decode steps against eager ones, and both against the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton_engine.engine_settings import EngineSettings
from baton_engine.loading import load_model
from baton_engine.sizing import KVCacheSettings
from baton_engine.steps.runner import ModelRunner
from tests.models import greedy_reference, make_model, make_prompt
from tests.unit.engine.steps import BLOCK_SIZE, generate, make_plan, make_slice, make_spec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

VARIANTS = ("llama", "qwen3", "qwen2-mixed-windows")


def load(folder: Path, *, enforce_eager: bool = False, dtype: str = "float32") -> ModelRunner:
    settings = EngineSettings(
        model=str(folder),
        device="cuda",
        dtype=dtype,
        block_size=BLOCK_SIZE,
        kv_cache=KVCacheSettings(kv_cache_memory_bytes=1 << 22),
        max_num_seqs=12,
        enforce_eager=enforce_eager,
    )
    return load_model(settings).start().runner


@pytest.mark.parametrize("enforce_eager", [False, True], ids=["captured", "eager"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_tokens_equal_those_of_transformers(variant: str, enforce_eager: bool, tmp_path: Path) -> None:
    folder, prompt = make_model(tmp_path / "model", variant), make_prompt(21, seed=3)
    expected, smallest_gap = greedy_reference(folder, prompt, 24)
    assert smallest_gap >= 1e-4
    assert generate(load(folder, enforce_eager=enforce_eager), prompt, 24) == expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_replayed_steps_give_the_tokens_of_eager_ones_at_every_size(dtype: str, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", "llama")
    tokens = []
    for enforce_eager in (False, True):
        runner = load(folder, enforce_eager=enforce_eager, dtype=dtype)
        prompts = [make_prompt(3 + row, seed=row) for row in range(12)]
        for row, prompt in enumerate(prompts):
            runner.execute(make_plan(make_slice(prompt, (2 * row, 2 * row + 1), name=str(row))))
        for num_seqs in (1, 3, 8, 12, 5):
            slices = [
                make_slice(
                    [9],
                    (2 * row, 2 * row + 1),
                    start=len(prompts[row]),
                    samples=(make_spec(4, seed=row, temperature=1.0),),
                    name=str(row),
                )
                for row in range(num_seqs)
            ]
            tokens.append(runner.execute(make_plan(*slices)).sampled)
    assert tokens[:5] == tokens[5:]
