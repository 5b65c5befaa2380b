"""Facts that the ranks of a group tell each other while they load their parts of a model."""

from __future__ import annotations

import torch

from baton_engine.ranks.ranks import Ranks
from baton_engine.sizing import KVCachePlan


def sum_over_ranks(number: int, ranks: Ranks) -> int:
    """Return the sum of what each rank has."""
    return int(ranks.whole.all_gather(torch.tensor([number], dtype=torch.int64)).sum())


def share_plan(plan: KVCachePlan | None, ranks: Ranks) -> KVCachePlan:
    """Return the plan of the group's leader, which the others do not have."""
    values = (plan.num_blocks, plan.max_model_len) if plan else (0, 0)
    told = ranks.whole.broadcast(torch.tensor(values, dtype=torch.int64), ranks.place.sizes.leader)
    num_blocks, max_model_len = told.tolist()
    return KVCachePlan(num_blocks=num_blocks, max_model_len=max_model_len)


def numerics_of_ranks(numerics: str, ranks: Ranks) -> str:
    """Return the fingerprint of batch-invariant numerics: sums over ranks depend on their number.

    In parallel-invariant mode they do not, nor on the threads, which ranks share.
    """
    size = ranks.place.sizes.tensor
    if ranks.place.sizes.is_invariant:
        return f"{numerics.partition(' threads-')[0]}, any number of ranks"
    return f"{numerics}, {size} ranks" if numerics and size > 1 else numerics
