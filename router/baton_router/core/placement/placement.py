"""The placement of a request: filter, score, pick, over a pure snapshot of the workers.

Nothing here is random or remembered: equal snapshots give equal decisions. docs/placement.md explains them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from baton_router.core.placement.candidates import order_candidates
from baton_router.core.placement.eligibility import (
    Eligible,
    Unplaceable,
    can_transfer,
    find_decoders,
    find_eligible,
    left_out,
    why_unplaceable,
)
from baton_router.core.placement.filters import NO_WORKERS
from baton_router.core.placement.placement_config import PlacementConfig
from baton_router.core.placement.placement_cost import CostModel
from baton_router.core.placement.placement_record import Candidate, Decision
from baton_router.core.placement.placement_snapshot import PlacementRequest, WorkerView
from baton_router.core.placement.routing_policies import RoutingPolicy

SHARE_IN_TIME: Final = 0.5
"""Share of the time until the first token within which another worker has to be predicted where the best one
would be late. Prompts take longer than predicted where many sequences run, so workers that are filled to the
limit make every request late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """`prefill` and `decode` are the same worker when the request is not split."""

    prefill: str
    decode: str
    reason: str

    @property
    def is_split(self) -> bool:
        return self.prefill != self.decode


def place(
    request: PlacementRequest,
    workers: Sequence[WorkerView],
    config: PlacementConfig,
    excluded: Mapping[str, str] = NO_WORKERS,
) -> tuple[Placement | Unplaceable, Decision]:
    """Choose workers for a prompt; `excluded` are those that must not get it, each with the reason."""
    eligible = find_eligible(request, workers, config, excluded)
    candidates, count = order_candidates(request, eligible, config)
    if candidates and candidates[0].cost.ttft_s > request.max_ttft_s:
        in_time, late = _in_time(request, eligible, config)
        others, num_others = order_candidates(request, in_time, config)
        if others:
            eligible, candidates, count, excluded = in_time, others, num_others, {**late, **excluded}
    outcome: Placement | Unplaceable
    if candidates:
        best = candidates[0]
        num_missing = request.num_prompt_tokens - best.num_local_tokens
        where = "alone" if best.prefill == best.decode else "split"
        reason = f"{where} (split={config.split}): {best.decode} lacks {num_missing} tokens; "
        reason += "an endpoint picker has named them; " if eligible.are_named else ""
        reason += _why(best, config)
        outcome = Placement(prefill=best.prefill, decode=best.decode, reason=reason)
    else:
        outcome = why_unplaceable(request, workers, config, eligible)
    out = left_out(request, workers, config, eligible, excluded)
    return outcome, _decision(request, config, candidates, outcome.reason, count, out)


def place_decoder(
    request: PlacementRequest,
    workers: Sequence[WorkerView],
    prefill: str,
    config: PlacementConfig,
    excluded: Mapping[str, str] = NO_WORKERS,
    *,
    is_computed: bool = False,
) -> tuple[str | None, Decision]:
    """Choose another decode worker for a prompt that `prefill` computes or has computed; None without one.

    Once it `is_computed`, that worker decodes it itself if it can and no other worker decodes any more.
    """
    eligible: Eligible = find_decoders(request, workers, prefill, excluded, is_computed=is_computed)
    candidates, count = order_candidates(request, eligible, config)
    out = left_out(request, workers, config, eligible, excluded)
    if not candidates:
        return None, _decision(request, config, [], "no other decode worker has room", 0, out)
    best = candidates[0]
    reason = f"moved: {prefill} keeps the prompt; {_why(best, config)}"
    return best.decode, _decision(request, config, candidates, reason, count, out)


def _in_time(
    request: PlacementRequest, eligible: Eligible, config: PlacementConfig
) -> tuple[Eligible, dict[str, str]]:
    """Return the workers that would give the first token well in time, and the reasons against the others."""
    views = {one.worker_id: one for one in (*eligible.alone, *eligible.prefillers)}
    terms = CostModel(request, config.stall_weight).terms(views.values())
    split_s = {name: one.queue_s + one.prefill_s for name, one in terms.items()}
    alone_s = {name: split_s[name] + one.seat_s for name, one in terms.items()}
    limit_s = SHARE_IN_TIME * request.max_ttft_s
    alone = [one for one in eligible.alone if alone_s[one.worker_id] <= limit_s]
    prefillers = [one for one in eligible.prefillers if split_s[one.worker_id] <= limit_s]
    receivers = [d for d in eligible.receivers if any(p is not d and can_transfer(p, d) for p in prefillers)]
    names = {one.worker_id for one in (*alone, *receivers)}
    in_time = replace(
        eligible,
        decoders=[one for one in eligible.decoders if one.worker_id in names],
        prefillers=prefillers,
        alone=alone,
        splitters=receivers,
        receivers=receivers,
    )
    names |= {one.worker_id for one in prefillers}
    return in_time, {
        name: f"gives a first token after {seconds:.3g} s; {limit_s:.3g} s are well in time"
        for name, seconds in alone_s.items()
        if name not in names
    }


def _decision(
    request: PlacementRequest,
    config: PlacementConfig,
    candidates: list[Candidate],
    reason: str,
    count: int,
    out: tuple[tuple[str, str], ...],
) -> Decision:
    return Decision(
        policy=config.policy,
        at_s=request.at_s,
        chosen=candidates[0] if candidates else None,
        reason=reason,
        candidates=tuple(candidates),
        num_candidates=count if candidates else 0,
        left_out=out,
    )


def _why(best: Candidate, config: PlacementConfig) -> str:
    if config.policy is not RoutingPolicy.COST:
        return f"the first by {config.policy}"
    cost = best.cost
    return (
        f"TTFT {cost.ttft_s:.4f} s + gap {cost.gap_s:.4f} s + stall {cost.stall_s:.4f} s "
        f"+ affinity {cost.affinity_s:.4f} s give {cost.score_s:.4f} s, the least"
    )
