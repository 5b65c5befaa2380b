"""Models divided over ranks compute what they compute in one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from baton_core.errors import InvalidConfigError
from baton_core.ranks.rank_layout import ParallelSizes
from baton_engine.models.divisible import require_divisible
from baton_engine.models.registry import build_model, read_model_config
from baton_engine.ranks.ranks import ALONE, Ranks
from baton_engine.steps.runner import ModelRunner
from baton_kernels.selection import select_kernels
from tests.quantized_reference import FIXTURES, quantized_weights
from tests.unit.engine.rank_threads import run_ranks
from tests.unit.engine.steps import BLOCK_SIZE, generate

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
QUANTIZED_MIXTURES = (
    "ct-qwen3-moe-w4a16",
    "gptq-mixtral",
    "gptq-qwen3-moe",
    "gptqmodel-awq-qwen2-moe",
    "gpt-oss-mxfp4",
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
    assert_equal_to_one_process(model_folder(variant), sizes, cpu_kernels)


@pytest.mark.parametrize("name", QUANTIZED_MIXTURES)
def test_ranks_generate_the_tokens_of_one_process_with_quantized_experts(name: str) -> None:
    assert_equal_to_one_process(FIXTURES / name, ParallelSizes(tensor=2), "auto")


def test_more_ranks_than_experts_are_refused() -> None:
    """Experts need not divide evenly, but each rank has one."""
    config = read_model_config(FIXTURES / "ct-mixtral-fp8-dynamic")
    said = "^tensor_parallel_size is 4, which is more than 3 experts; allowed: 1, 2$"
    with pytest.raises(InvalidConfigError, match=said):
        require_divisible(config, ParallelSizes(tensor=4))


def assert_equal_to_one_process(folder: Path, sizes: ParallelSizes, cpu_kernels: str) -> None:
    prompt = list(range(3, 32))
    config = read_model_config(folder)
    require_divisible(config, sizes)
    kernels = select_kernels("cpu", torch.float32, cpu_kernels)
    spec = config.kv_spec(BLOCK_SIZE, "float32")

    def make(ranks: Ranks) -> ModelRunner:
        kv_pool = torch.full((32 * len(spec.groups), *spec.block_shape), torch.nan)
        model = build_model(config, quantized_weights(folder), kernels.layers, ranks)
        return ModelRunner(model, kernels.attention, kv_pool, spec, ranks=ranks)

    expected = generate(make(ALONE), prompt, 10, chunk_len=16)
    assert run_ranks(sizes, make, lambda runner: generate(runner, prompt, 10, chunk_len=16)) == expected
