"""Metrics of an `LLM` that are off by default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from baton import LLM
from baton_core.errors import InvalidConfigError
from tests.integration.tiny_llm import greedy, tiny_args
from tests.models import make_model, make_prompt

NUM_BLOCKS = 8


def measured(llm: LLM) -> dict[str, Any]:
    names = ("vllm:kv_block_", "vllm:estimated_")
    return {one.name: one for one in llm.get_metrics() if one.name.startswith(names)}


def fill(llm: LLM, *seeds: int) -> None:
    """Compute prompts of three blocks each."""
    for seed in seeds:
        llm.generate(make_prompt(99, seed=seed), greedy(1), use_tqdm=False)


def test_blocks_and_work_are_measured_where_it_is_asked_for(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "llama", "llama")
    asked = {"kv_cache_metrics": True, "kv_cache_metrics_sample": 1.0, "enable_mfu_metrics": True}
    sizes = {"kv_cache_memory_bytes": None, "num_gpu_blocks_override": NUM_BLOCKS, "max_model_len": 128}
    with LLM.from_engine_args(tiny_args(folder, **sizes, **asked)) as llm:
        fill(llm, 1, 1, 1)
        found = measured(llm)
        assert found["vllm:kv_block_reuse_gap_seconds"].count == 3, "three blocks, each found twice"
        assert found["vllm:kv_block_lifetime_seconds"].count == 0
        flops = found["vllm:estimated_flops_per_gpu"].value
        assert flops > 0
        fill(llm, 2, 3)
        llm.sleep(level=1)
        llm.wake_up()
        found = measured(llm)
        assert found["vllm:kv_block_lifetime_seconds"].count > 0, "still known after a sleep"
        assert found["vllm:kv_block_idle_before_evict_seconds"].count > 0
        assert found["vllm:estimated_flops_per_gpu"].value > 2 * flops
    with LLM.from_engine_args(tiny_args(folder)) as llm:
        fill(llm, 1)
        assert measured(llm) == {}


def test_a_model_whose_work_is_not_known_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "neox", "gpt-neox")
    (folder / "model.safetensors").unlink()
    text = "enable_mfu_metrics is True; allowed with GPTNeoXForCausalLM: False"
    with pytest.raises(InvalidConfigError, match=text):
        LLM.from_engine_args(tiny_args(folder, enable_mfu_metrics=True))
