"""Ranks agree on their KV pools: on GPUs, which have a memory each, as many blocks as fit on all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from baton_core.errors import InvalidConfigError
from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.ranks.rank_layout import ParallelSizes, RankPlace
from baton_engine.ranks.agreement import plan_over_ranks, weights_in_memory
from baton_engine.ranks.ranks import Ranks
from baton_engine.sizing import KVCachePlan, KVCacheSettings, MemoryState
from baton_kernels.reference.torch_collectives import TorchCollectives

SPEC = KVSpec(num_layers=3, num_kv_heads=2, head_dim=8, block_size=4, dtype="float32")
SIZES = ParallelSizes(tensor=2)


def plans(free: tuple[int, int], device_type: str, **settings: int) -> list[KVCachePlan]:
    """Return the plan of each rank, given what each has free beside weights of 1000 bytes."""
    store = HashStore()

    def plan(rank: int) -> KVCachePlan:
        whole = TorchCollectives.over_gloo(store, "whole", rank, 2, deadline_s=20)
        ranks = Ranks(place=RankPlace(sizes=SIZES, rank=rank), whole=whole)
        weights = weights_in_memory(1000, torch.device(device_type), ranks)
        memory = MemoryState(device_type=device_type, free_bytes=free[rank], weight_bytes=weights)
        return plan_over_ranks(SPEC, 64, KVCacheSettings(memory_share=1.0, **settings), memory, ranks)

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(plan, range(2)))


def test_gpus_hold_their_part_of_as_many_blocks_as_fit_on_every_one() -> None:
    part = SPEC.block_bytes // 2
    first, second = plans((1000 + 20 * part, 1000 + 17 * part + 5), "cuda")
    assert first == second == KVCachePlan(num_blocks=17, max_model_len=64)
    assert plans((10**6, 10**6), "cuda", kv_cache_memory_bytes=9 * part)[0].num_blocks == 9


def test_cpus_share_one_memory_which_the_leader_divides() -> None:
    (first, second) = plans((2000 + 10 * SPEC.block_bytes, 0), "cpu")
    assert first == second == KVCachePlan(num_blocks=10, max_model_len=40)


def test_a_gpu_without_room_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="kv_cache_memory_bytes is 0; allowed: at least"):
        plans((1000, 10**6), "cuda")
