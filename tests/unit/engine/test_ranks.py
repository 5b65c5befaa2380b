"""Models divided over ranks compute what they compute in one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from baton_core.errors import InvalidConfigError, InvalidModelError
from baton_core.ranks.rank_layout import ExpertPlacement, ParallelSizes
from baton_engine.checkpoint.quantization.methods import OnlineQuantization
from baton_engine.checkpoint.quantization.online_plan import OnlinePlan
from baton_engine.checkpoint.weights import WeightReader
from baton_engine.models.divisible import require_divisible
from baton_engine.models.registry import build_model, read_model_config
from baton_engine.ranks.ranks import Ranks
from baton_engine.steps.runner import ModelRunner
from baton_kernels.selection import select_kernels
from tests.quantized_reference import FIXTURES, quantized_weights
from tests.unit.engine.rank_threads import run_ranks
from tests.unit.engine.steps import BLOCK_SIZE, generate

pytestmark = pytest.mark.slow

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
PROMPT = range(3, 32)
QUANTIZED_MIXTURES = (
    "ct-qwen3-moe-w4a16",
    "gptq-mixtral",
    "gptq-qwen3-moe",
    "gptqmodel-awq-qwen2-moe",
    "gpt-oss-mxfp4",
    "transformers-fp8-block-qwen3-moe",
)
SIZES = (ParallelSizes(tensor=4), ParallelSizes(tensor=2, pipeline=2))
"""The heads in as many parts as there are, and stages of several ranks; fewer ranks run the same code."""


@pytest.mark.parametrize(
    ("variant", "cpu_kernels", "sizes"),
    [
        *((variant, "auto", sizes) for variant in VARIANTS for sizes in SIZES),
        *((variant, "torch", sizes) for variant in ("gemma3", "gpt-oss") for sizes in SIZES),
        *((variant, "auto", ParallelSizes(tensor=2)) for variant in ("llama", "gpt-oss")),
        *((variant, "auto", ParallelSizes(pipeline=2)) for variant in ("llama", "gpt-oss")),
    ],
    ids=str,
)
def test_ranks_generate_the_tokens_of_one_process(
    variant: str, cpu_kernels: str, sizes: ParallelSizes, model_folder: Callable[[str], Path]
) -> None:
    check_tokens(model_folder(variant), sizes, cpu_kernels)


@pytest.mark.parametrize("variant", ["mixtral", "qwen2-moe", "qwen3-moe", "gpt-oss"])
@pytest.mark.parametrize(
    "sizes",
    [
        ParallelSizes(tensor=2, experts=ExpertPlacement.ROUND_ROBIN),
        ParallelSizes(tensor=4, experts=ExpertPlacement.LINEAR),
    ],
    ids=str,
)
def test_ranks_with_whole_experts_generate_the_tokens_of_one_process(
    variant: str, sizes: ParallelSizes, model_folder: Callable[[str], Path]
) -> None:
    check_tokens(model_folder(variant), sizes)


@pytest.mark.parametrize("name", QUANTIZED_MIXTURES)
def test_stored_quantized_experts_stay_whole(name: str) -> None:
    sizes = ParallelSizes(tensor=2, experts=ExpertPlacement.LINEAR)
    check_tokens(FIXTURES / name, sizes, read=quantized_weights)


def test_stored_quantized_experts_are_cut_between_groups() -> None:
    with pytest.raises(InvalidModelError, match=r"experts.* cut a group; allowed: .*enable_expert_parallel"):
        check_tokens(FIXTURES / "gpt-oss-mxfp4", ParallelSizes(tensor=2), read=quantized_weights)
    for name in ("gptq-qwen3-moe", "transformers-fp8-block-qwen3-moe"):
        check_tokens(FIXTURES / name, ParallelSizes(tensor=2), read=quantized_weights)


@pytest.mark.parametrize(
    "name", ["ct-w8a8", "ct-fp8-dynamic", "ct-w4a8", "quark-int4-fp8", "ct-mixtral-fp8-dynamic"]
)
@pytest.mark.parametrize("cpu_kernels", ["auto", "torch"])
def test_rows_are_rounded_by_the_extremes_of_all_ranks(name: str, cpu_kernels: str) -> None:
    check_tokens(FIXTURES / name, ParallelSizes(tensor=2), cpu_kernels, quantized_weights)


ONLINE = [
    ("gemma3", OnlineQuantization.INT8),
    ("llama-mha-tied", OnlineQuantization.FP8_PER_TENSOR),
    ("llama", OnlineQuantization.FP8_PER_CHANNEL),
    ("gpt2", OnlineQuantization.INT8_WEIGHT_ONLY),
    ("qwen2-moe", OnlineQuantization.INT8),
    ("gpt-oss", OnlineQuantization.INT8),
]


@pytest.mark.parametrize(("variant", "kind"), ONLINE)
def test_parts_are_quantized_as_the_whole_is(
    variant: str, kind: OnlineQuantization, model_folder: Callable[[str], Path]
) -> None:
    def read(folder: Path) -> WeightReader:
        return WeightReader(folder, torch.float32, online=OnlinePlan.of(kind))

    check_tokens(model_folder(variant), ParallelSizes(tensor=2), read=read)


def test_whole_experts_that_there_are_not_are_refused(model_folder: Callable[[str], Path]) -> None:
    for variant, tensor, said in (
        ("llama", 2, "enable_expert_parallel is True; allowed with LlamaForCausalLM: False"),
        ("llama", 1, "enable_expert_parallel is True; allowed with LlamaForCausalLM: False"),
        ("mixtral", 8, "which does not divide 4 query heads and is more than 5 experts; allowed: "),
    ):
        sizes = ParallelSizes(tensor=tensor, experts=ExpertPlacement.LINEAR)
        with pytest.raises(InvalidConfigError, match=said):
            require_divisible(read_model_config(model_folder(variant)), sizes)


def read_weights(folder: Path) -> WeightReader:
    return WeightReader(folder, torch.float32)


def check_tokens(
    folder: Path,
    sizes: ParallelSizes,
    cpu_kernels: str = "auto",
    read: Callable[[Path], WeightReader] = read_weights,
) -> None:
    """Compare the tokens of a group with those of one process."""
    config = read_model_config(folder)
    require_divisible(config, sizes)
    expected, found = (tokens_of(folder, one, cpu_kernels, read) for one in (ParallelSizes(), sizes))
    assert found == expected


def tokens_of(
    folder: Path, sizes: ParallelSizes, cpu_kernels: str, read: Callable[[Path], WeightReader]
) -> list[int]:
    config, kernels = read_model_config(folder), select_kernels("cpu", torch.float32, cpu_kernels)
    spec = config.kv_spec(BLOCK_SIZE, "float32")

    def make(ranks: Ranks) -> ModelRunner:
        model = build_model(config, read(folder), kernels.layers, ranks)
        kv_pool = torch.full((32 * len(spec.groups), *spec.block_shape), torch.nan)
        return ModelRunner(model, kernels.attention, kv_pool, spec, ranks=ranks)

    return run_ranks(sizes, make, lambda runner: generate(runner, PROMPT, 10, chunk_len=16))
