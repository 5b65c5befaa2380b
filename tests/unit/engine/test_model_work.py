"""The estimated work of steps, against what torch counts in Transformers' models of the same shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BertConfig,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    PretrainedConfig,
)

from baton_core.errors import InvalidConfigError
from baton_core.ranks.rank_layout import ParallelSizes
from baton_core.worker.model_work import AttentionGroup, ModelWork
from baton_core.worker.step_plan import SeqId, SequenceSlice
from baton_engine.engine_settings import EngineSettings
from baton_engine.loading import load_model
from baton_engine.models.model_work import model_work
from baton_engine.models.registry import read_model_config
from tests.models import make_model
from tests.unit.engine.steps import make_spec

SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
ONE = ParallelSizes()
LLAMA = LlamaConfig(**SIZES, architectures=["LlamaForCausalLM"])
GPT2 = GPT2Config(
    vocab_size=512, n_embd=64, n_layer=2, n_head=4, n_positions=128, architectures=["GPT2LMHeadModel"]
)
MIXTRAL = MixtralConfig(
    **SIZES, num_local_experts=8, num_experts_per_tok=2, architectures=["MixtralForCausalLM"]
)


def estimate(
    config: PretrainedConfig, folder: Path, *, sizes: ParallelSizes = ONE, read_bytes: int = 0
) -> ModelWork:
    config.save_pretrained(folder)
    read = read_model_config(folder)
    spec = read.kv_spec(16, "float32")
    return model_work(read, spec, dtype="float32", read_bytes=read_bytes, sizes=sizes)


def piece(start: int, count: int, *, draws: bool = True) -> SequenceSlice:
    samples = (make_spec(start + count),) if draws else ()
    return SequenceSlice(
        seq_id=SeqId("r", 0), token_ids=(1,) * count, start=start, block_tables=(), samples=samples
    )


def counted_flops(config: PretrainedConfig, start: int) -> float:
    """Operations of one token behind `start` others, by torch."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        cache = model(torch.ones(1, start, dtype=torch.int64), use_cache=True).past_key_values
        with FlopCounterMode(display=False) as counter:
            model(torch.ones(1, 1, dtype=torch.int64), past_key_values=cache, use_cache=True)
    return float(counter.get_total_flops())


@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=["llama", "gpt2"])
@pytest.mark.parametrize("start", [1, 40])
def test_a_tokens_operations_are_those_that_torch_counts(
    config: PretrainedConfig, start: int, tmp_path: Path
) -> None:
    found = estimate(config, tmp_path).of_step([piece(start, 1)]).flops
    assert found == pytest.approx(counted_flops(config, start), rel=1e-3), (
        "rotations count as a product there"
    )


def test_a_token_passes_its_own_experts(tmp_path: Path) -> None:
    work = estimate(MIXTRAL, tmp_path)
    dense = estimate(LLAMA, tmp_path)
    expert = 3 * 2 * 3 * 64 * 96
    router = 3 * 2 * 64 * 8
    step = [piece(0, 1)]
    assert work.of_step(step).flops - dense.of_step(step).flops == 2 * expert + router - expert


def test_a_prompt_is_the_sum_of_its_tokens_but_for_weights_and_logits(tmp_path: Path) -> None:
    work = estimate(LLAMA, tmp_path)
    whole = work.of_step([piece(10, 20)])
    single = [work.of_step([piece(10 + n, 1, draws=n == 19)]) for n in range(20)]
    assert whole.flops == sum(one.flops for one in single)
    assert whole.written_bytes == sum(one.written_bytes for one in single)


def test_weights_are_read_once_and_the_cache_as_far_as_it_is_seen(tmp_path: Path) -> None:
    num_weights = 3 * (64 * 128 + 64 * 64 + 3 * 64 * 96) + 64 * 512
    work = estimate(LLAMA, tmp_path, read_bytes=4 * num_weights)
    one, other = work.of_step([piece(10, 1)]), work.of_step([piece(30, 1)])
    kv_bytes = 3 * 2 * 2 * 16 * 4
    assert other.read_bytes - one.read_bytes == pytest.approx(20 * kv_bytes)
    inputs = 4 * (3 * (64 + 64 + 64 + 96) + 64)
    assert one.read_bytes == pytest.approx(4 * num_weights + 11 * kv_bytes + inputs)
    assert one.written_bytes == kv_bytes + 4 * (3 * (128 + 64 + 192 + 64) + 512)
    without = work.of_step([piece(10, 1, draws=False)])
    assert one.read_bytes - without.read_bytes == pytest.approx(4 * (64 * 512 + 64)), "no head without a draw"


@pytest.mark.parametrize("settings", [{}, {"cpu_kernels": "torch"}])
@pytest.mark.parametrize("variant", ["llama", "qwen2", "mixtral", "gpt2", "opt"])
def test_a_loaded_models_weights_take_their_bytes_without_its_tables(
    variant: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    loaded = load_model(EngineSettings(model=str(make_model(tmp_path / "model", variant)), **settings))
    work = model_work(loaded.config, loaded.kv_spec, dtype="float32", read_bytes=loaded.read_bytes, sizes=ONE)
    assert work.weight_bytes == pytest.approx(4, rel=0.09), (
        "tied tables are heads, too, as they are or as packed copies"
    )


def test_ranks_divide_the_work_and_many_tokens_read_all_experts(tmp_path: Path) -> None:
    whole, part = (
        estimate(MIXTRAL, tmp_path, sizes=ParallelSizes(tensor=n), read_bytes=1000 // n) for n in (1, 2)
    )
    step = [piece(0, 100)]
    assert part.of_step(step).flops == whole.of_step(step).flops / 2
    assert part.of_step(step).read_bytes == pytest.approx(whole.of_step(step).read_bytes / 2)
    experts = max(whole.products, key=lambda one: one.num_weights)
    reads = [experts.num_read_weights(n) / experts.num_weights for n in (0, 1, 100)]
    assert reads == [0, 0.25, pytest.approx(1)]


@pytest.mark.parametrize(("stages", "num_layers"), [((), 1.5), ((2, 1), 1)])
def test_the_leaders_weights_are_those_of_the_last_stage_and_the_head(
    stages: tuple[int, ...], num_layers: float, tmp_path: Path
) -> None:
    own = int(num_layers * (64 * 128 + 64 * 64 + 3 * 64 * 96)) + 64 * 512
    sizes = ParallelSizes(pipeline=2, stages=stages)
    assert estimate(LLAMA, tmp_path, sizes=sizes, read_bytes=4 * own).weight_bytes == pytest.approx(4)


@pytest.mark.parametrize("window", [None, 1, 3, 50])
@pytest.mark.parametrize("start", [0, 2, 9])
def test_tokens_see_the_last_ones_of_a_window(window: int | None, start: int) -> None:
    group, reach = AttentionGroup(num_layers=1, window=window), 10**6 if window is None else window
    sees = [range(max(0, at - reach + 1), at + 1) for at in range(start, start + 5)]
    assert group.num_pairs(start, 5, is_causal=True) == sum(map(len, sees))
    assert group.num_seen(start, 5) == len(set().union(*sees))
    both = [range(max(0, at - reach), min(5, at + reach + 1)) for at in range(5)]
    assert group.num_pairs(0, 5, is_causal=False) == sum(map(len, both))


def test_a_model_of_transformers_is_refused(tmp_path: Path) -> None:
    config = AutoConfig.for_model("stablelm", **SIZES, architectures=["StableLmForCausalLM"])
    with pytest.raises(
        InvalidConfigError, match="enable_mfu_metrics is True; allowed with StableLmForCausalLM"
    ):
        estimate(config, tmp_path)


def test_an_encoder_has_no_cache(tmp_path: Path) -> None:
    sizes = {name: value for name, value in SIZES.items() if name != "num_key_value_heads"}
    work = estimate(BertConfig(**sizes, architectures=["BertModel"]), tmp_path).of_step([piece(0, 4)])
    layer = 4 * 64 * 64 + 2 * 64 * 96
    assert work.flops == 3 * (2 * 4 * layer + 4 * 64 * 16)
    assert work.written_bytes == 4 * 4 * 3 * (192 + 64 + 96 + 64)
