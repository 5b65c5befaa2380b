"""Models divided over ranks compute what they compute in one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from baton_core.ranks.rank_layout import ParallelSizes
from baton_engine.checkpoint.weights import WeightReader
from baton_engine.models.divisible import require_divisible
from baton_engine.models.registry import build_model, read_model_config
from baton_engine.ranks.ranks import Ranks
from baton_engine.steps.runner import ModelRunner
from baton_kernels.selection import select_kernels
from tests.unit.engine.rank_threads import run_ranks
from tests.unit.engine.steps import BLOCK_SIZE, generate, make_runner

VARIANTS = (
    "llama",
    "llama-mha-tied",
    "llama-mqa-wide-heads",
    "llama-biased",
    "qwen2",
    "qwen2-mixed-windows",
    "qwen3",
    "mistral-window",
    "gemma2",
    "gemma3",
    "phi3-longrope",
    "mixtral",
    "qwen2-moe",
    "qwen3-moe",
    "gpt-oss",
    "gpt2",
    "opt",
    "opt-post-norm",
)
SIZES = (
    ParallelSizes(tensor=2),
    ParallelSizes(tensor=4),
    ParallelSizes(pipeline=2),
    ParallelSizes(tensor=2, pipeline=2),
)


@pytest.mark.parametrize(
    ("variant", "cpu_kernels"),
    [*((variant, "auto") for variant in VARIANTS), ("gemma3", "torch"), ("gpt-oss", "torch")],
)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_ranks_generate_the_tokens_of_one_process(
    variant: str, sizes: ParallelSizes, cpu_kernels: str, model_folder: Callable[[str], Path]
) -> None:
    folder = model_folder(variant)
    prompt = list(range(3, 32))
    expected = generate(make_runner(folder), prompt, 10, chunk_len=16)

    config = read_model_config(folder)
    require_divisible(config, sizes)
    kernels = select_kernels("cpu", torch.float32, cpu_kernels)
    spec = config.kv_spec(BLOCK_SIZE, "float32")
    kv_pool = torch.full((32 * len(spec.groups), *spec.block_shape), torch.nan)

    def make(ranks: Ranks) -> ModelRunner:
        model = build_model(config, WeightReader(folder, torch.float32), kernels.layers, ranks)
        return ModelRunner(model, kernels.attention, kv_pool, spec, ranks=ranks)

    assert run_ranks(sizes, make, lambda runner: generate(runner, prompt, 10, chunk_len=16)) == expected
