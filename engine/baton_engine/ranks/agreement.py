"""Facts that the ranks of a group tell each other while they load their parts of a model."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.ranks.transfer_plan import block_part
from baton_engine.ranks.ranks import Ranks
from baton_engine.sizing import (
    KVCachePlan,
    KVCacheSettings,
    MemoryState,
    kv_cache_bytes,
    memory_table,
    plan_blocks,
    plan_kv_cache,
)

logger = logging.getLogger(__name__)


def weights_in_memory(own_bytes: int, device: torch.device, ranks: Ranks) -> int:
    """Return the bytes of weights in the memory that this rank's KV pool is to lie in.

    On CPUs these are the weights of all ranks, counted as one memory; a GPU holds its rank's alone.
    """
    return int(_all_have(own_bytes, ranks).sum()) if device.type == "cpu" else own_bytes


def plan_over_ranks(
    spec: KVSpec, max_position_embeddings: int, settings: KVCacheSettings, memory: MemoryState, ranks: Ranks
) -> KVCachePlan:
    """Return the plan of all ranks' KV pools, given the `spec` of whole blocks.

    On CPUs the group's leader divides the memory. GPUs have one each: every rank holds its part of as many
    blocks as there is room for at all of them.

    Raises:
        InvalidConfigError: as `plan_kv_cache`.
    """
    plan, own = None, spec
    if memory.device_type != "cpu":
        own = block_part(spec, ranks.place).spec(spec)
        own_blocks = kv_cache_bytes(own, settings, memory) // own.block_bytes
        num_blocks = int(_all_have(own_blocks, ranks).min())
        plan = plan_blocks(spec, max_position_embeddings, settings, num_blocks * spec.block_bytes)
    elif ranks.place.is_leader:
        plan = plan_kv_cache(spec, max_position_embeddings, settings, memory)
    if plan is not None and ranks.place.is_leader:
        logger.info("%s", memory_table(own, plan, memory))
    return _share_plan(plan, ranks)


def numerics_of_ranks(numerics: str, ranks: Ranks) -> str:
    """Return the fingerprint of batch-invariant numerics: sums over ranks depend on their number.

    In parallel-invariant mode they do not, nor on the threads, which ranks share.
    """
    size = ranks.place.sizes.tensor
    if ranks.place.sizes.is_invariant:
        return f"{numerics.partition(' threads-')[0]}, any number of ranks"
    return f"{numerics}, {size} ranks" if numerics and size > 1 else numerics


def _all_have(number: int, ranks: Ranks) -> Tensor:
    """Return `[num_ranks, 1] int64`: the number that each rank has."""
    return ranks.whole.all_gather(torch.tensor([number], dtype=torch.int64))


def _share_plan(plan: KVCachePlan | None, ranks: Ranks) -> KVCachePlan:
    """Return the plan of the group's leader."""
    values = (plan.num_blocks, plan.max_model_len) if plan else (0, 0)
    told = ranks.whole.broadcast(torch.tensor(values, dtype=torch.int64), ranks.place.sizes.leader)
    num_blocks, max_model_len = told.tolist()
    return KVCachePlan(num_blocks=num_blocks, max_model_len=max_model_len)
