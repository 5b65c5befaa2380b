"""The number of KV blocks and the longest sequence, from given amounts of memory."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from baton_core.errors import InvalidConfigError
from baton_core.kv_layout.kv_spec import KVGroup, KVSpec
from baton_engine.sizing import (
    GIB,
    KVCachePlan,
    KVCacheSettings,
    MemoryBeside,
    MemoryState,
    memory_table,
    plan_kv_cache,
)

GROUP = KVSpec(num_layers=2, num_kv_heads=2, head_dim=16, block_size=8, dtype="float32")
BLOCK_BYTES = 4096


def plan(
    free: int, weights: int = 0, *, device: str = "cuda", model_len: int = 64, **settings: Any
) -> KVCachePlan:
    memory = MemoryState(device_type=device, free_bytes=free, weight_bytes=weights)
    return plan_kv_cache(GROUP, model_len, KVCacheSettings(**settings), memory)


def test_workers_share_the_stated_part_of_free_memory_weights_included() -> None:
    free = 1000 * BLOCK_BYTES
    assert plan(free).num_blocks == 900
    assert plan(free, 100 * BLOCK_BYTES, memory_share=0.5).num_blocks == 400
    assert plan(free, 100 * BLOCK_BYTES, memory_share=0.5, num_workers=2).num_blocks == 150


def test_a_cpu_takes_at_most_4_gib_unless_told() -> None:
    assert plan(100 * GIB, device="cpu").num_blocks == GIB // BLOCK_BYTES
    assert plan(100 * GIB, device="cpu", kv_cache_memory_bytes=8 * GIB).num_blocks == 8 * GIB // BLOCK_BYTES
    assert plan(100 * GIB, device="cuda").num_blocks == 90 * GIB // BLOCK_BYTES


def test_an_exact_size_is_rounded_down_to_blocks() -> None:
    assert plan(GIB, kv_cache_memory_bytes=10 * BLOCK_BYTES + 1).num_blocks == 10


def test_an_exact_size_beyond_what_is_free_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match=r"kv_cache_memory_bytes is 8000; allowed: at most 7000"):
        plan(9000, 2000, kv_cache_memory_bytes=8000)


def test_an_exact_number_of_blocks_comes_before_an_exact_size() -> None:
    assert plan(GIB, num_gpu_blocks_override=7, kv_cache_memory_bytes=10 * BLOCK_BYTES).num_blocks == 7
    with pytest.raises(InvalidConfigError, match="num_gpu_blocks_override is 8; allowed: at most 7, for"):
        plan(9 * BLOCK_BYTES, 2 * BLOCK_BYTES - 1, num_gpu_blocks_override=8)


def test_less_than_one_block_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="kv_cache_memory_bytes is 90; allowed: at least 4096"):
        plan(100)
    with pytest.raises(InvalidConfigError, match="kv_cache_memory_bytes is 0; allowed: at least 4096"):
        plan(100, 5000)


def test_the_sequence_length_is_lowered_to_the_cache_with_a_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert plan(GIB, kv_cache_memory_bytes=3 * BLOCK_BYTES).max_model_len == 24
    assert caplog.messages == [
        "max_model_len lowered from 64 to 24 tokens, which the KV cache holds; a larger "
        "kv_cache_memory_bytes holds more, and a given max_model_len that does not fit is refused"
    ]
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert plan(GIB, num_gpu_blocks_override=3).max_model_len == 24
    assert "a larger num_gpu_blocks_override holds more" in caplog.text
    caplog.clear()
    assert plan(GIB).max_model_len == 64
    assert caplog.messages == []


def test_a_sequence_length_that_was_asked_for_is_kept_or_refused() -> None:
    assert plan(GIB, max_model_len=40).max_model_len == 40
    longer = (
        r'allowed: at most 64 \(.* hf_overrides \{"max_position_embeddings": 65\} for a model that takes more'
    )
    with pytest.raises(InvalidConfigError, match=f"max_model_len is 65; {longer}"):
        plan(GIB, max_model_len=65)
    with pytest.raises(InvalidConfigError, match="max_model_len is 40; allowed: at most 24"):
        plan(GIB, max_model_len=40, kv_cache_memory_bytes=3 * BLOCK_BYTES)


def test_a_length_without_room_for_an_answer_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="max_model_len is 1; allowed: at least 2 tokens"):
        plan(GIB, max_model_len=1)
    assert plan(GIB, max_model_len=1, min_model_len=1).max_model_len == 1
    assert plan(GIB, max_model_len=2).max_model_len == 2


def test_what_drafts_gets_its_weights_and_blocks_for_as_many_tokens() -> None:
    beside = MemoryBeside(weight_bytes=100 * BLOCK_BYTES, block_bytes=BLOCK_BYTES // 4)
    memory = MemoryState(device_type="cuda", free_bytes=1000 * BLOCK_BYTES, weight_bytes=0, beside=beside)
    shared = plan_kv_cache(GROUP, 64, KVCacheSettings(), memory)
    assert shared.num_blocks == (900 - 100) / 1.25
    assert "drafts        0.001 GiB" in memory_table(GROUP, shared, memory)
    given = KVCacheSettings(num_gpu_blocks_override=721)
    with pytest.raises(InvalidConfigError, match="num_gpu_blocks_override is 721; allowed: at most 720"):
        plan_kv_cache(GROUP, 64, given, memory)


def test_layers_with_a_window_let_a_pool_hold_longer_sequences() -> None:
    groups = (KVGroup(layers=(0, 1)), KVGroup(layers=(2, 3), window=9))
    memory = MemoryState(device_type="cuda", free_bytes=GIB, weight_bytes=0)
    settings = KVCacheSettings(kv_cache_memory_bytes=20 * BLOCK_BYTES, max_num_batched_tokens=16)
    spec = replace(GROUP, groups=groups)
    assert plan_kv_cache(spec, 4096, settings, memory).max_model_len == (20 - 2 - 4) * 8
    spec = replace(GROUP, groups=groups[1:])
    assert plan_kv_cache(spec, 4096, settings, memory).max_model_len == 4096


def test_every_kv_group_needs_a_block() -> None:
    spec = replace(GROUP, groups=(KVGroup(layers=(0, 1)), KVGroup(layers=(2, 3), window=9)))
    memory = MemoryState(device_type="cuda", free_bytes=GIB, weight_bytes=0)
    with pytest.raises(InvalidConfigError, match="kv_cache_memory_bytes is 4096; allowed: at least 8192"):
        plan_kv_cache(spec, 64, KVCacheSettings(kv_cache_memory_bytes=BLOCK_BYTES), memory)
    with pytest.raises(
        InvalidConfigError, match="num_gpu_blocks_override is 1; allowed: at least 2, a block"
    ):
        plan_kv_cache(spec, 64, KVCacheSettings(num_gpu_blocks_override=1), memory)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kv_cache_memory_bytes": 0}, "kv_cache_memory_bytes is 0; allowed: an integer of at least 1"),
        ({"num_workers": 0}, "num_workers is 0; allowed"),
        ({"max_model_len": -1}, "max_model_len is -1; allowed"),
        ({"memory_share": 0.0}, "memory_share is 0.0; allowed: above 0 and at most 1"),
        ({"memory_share": 1.1}, "memory_share is 1.1; allowed"),
    ],
)
def test_settings_outside_their_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        KVCacheSettings(**settings)


def test_the_table_accounts_for_all_free_memory() -> None:
    memory = MemoryState(device_type="cpu", free_bytes=4 * GIB, weight_bytes=GIB)
    table = memory_table(GROUP, KVCachePlan(num_blocks=GIB // BLOCK_BYTES, max_model_len=64), memory)
    assert table.splitlines() == [
        "memory of cpu",
        "weights       1.000 GiB",
        "KV cache      1.000 GiB  262144 blocks of 8 tokens, 2097152 tokens",
        "left free     2.000 GiB",
    ]
