"""Agreement of all ranks of a group on what holds for each of them."""

from __future__ import annotations

import torch

from baton_engine.sizing import KVCachePlan
from baton_kernels.interface.collectives import Collectives


def agree_on_plan(plan: KVCachePlan, ranks: Collectives) -> KVCachePlan:
    """Return the largest KV cache that every rank has room for: one block table serves all of them."""
    own = torch.tensor([plan.num_blocks, plan.max_model_len], dtype=torch.int64)
    num_blocks, max_model_len = ranks.all_gather(own).amin(dim=0).tolist()
    return KVCachePlan(num_blocks=num_blocks, max_model_len=max_model_len)
