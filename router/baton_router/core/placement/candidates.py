"""The candidates of a request, in the order of its routing policy: scored by cost, or ranked."""

from __future__ import annotations

from baton_core.sessions.worker_info import Role
from baton_router.core.placement.eligibility import Eligible, can_transfer
from baton_router.core.placement.placement_config import PlacementConfig
from baton_router.core.placement.placement_cost import CostModel, CostTerms, ranked
from baton_router.core.placement.placement_record import MAX_CANDIDATES, Candidate
from baton_router.core.placement.placement_snapshot import PlacementRequest
from baton_router.core.placement.routing_policies import Half, RoutingPolicy, rank

_MIXED = Role.MIXED
_Scored = tuple[float, int, int, CostTerms, CostTerms]
"""Score, 1 if split, rank among equal scores, and the terms of the prefill and the decode worker."""


def order_candidates(
    request: PlacementRequest, eligible: Eligible, config: PlacementConfig
) -> tuple[list[Candidate], int]:
    """Return the best candidates, the best first, and the number of all."""
    model = CostModel(request, config.stall_weight)
    if config.policy is RoutingPolicy.COST:
        return _by_cost(model, eligible)
    return _by_rank(model, request, eligible, config.policy)


def _by_cost(model: CostModel, eligible: Eligible) -> tuple[list[Candidate], int]:
    """Order all candidates by cost; of equal ones, those that are not split come first."""
    views = (*eligible.alone, *eligible.prefillers, *eligible.receivers)
    known = model.terms({view.worker_id: view for view in views}.values())
    locals_ = [known[view.worker_id] for view in eligible.alone]
    alone = _best(locals_, [one.local_score_s for one in locals_])
    scored = [(one.local_score_s, 0, rank, one, one) for rank, one in enumerate(alone)]
    if num_pairs := eligible.num_pairs:
        prefillers = [known[view.worker_id] for view in eligible.prefillers]
        receivers = [known[view.worker_id] for view in eligible.receivers]
        scored += _pairs(model, prefillers, receivers)
    best = [one[-2:] for one in sorted(scored)[:MAX_CANDIDATES]]
    candidates = [model.local(p) if p is d else model.split(p, d) for p, d in best]
    return candidates, len(eligible.alone) + num_pairs


def _pairs(model: CostModel, prefillers: list[CostTerms], receivers: list[CostTerms]) -> list[_Scored]:
    """Return the best prefill workers that reach a decode worker, each with the best decode workers.

    These are the best for the first prefill worker, or of those it reaches for one whose blocks do not arrive
    everywhere. A prefill worker that cannot be in one of the best pairs any more ends the search.
    """
    cut_off = {name for one in receivers for name in one.view.broken_sources}
    able = [p for p in prefillers if any(_is_pair(p, d) for d in receivers)] if cut_off else prefillers
    prefills = _best(able, [one.prefill_score_s for one in able])
    common = _best(receivers, model.split_scores_s(prefills[0], receivers)) if prefills else []
    least_s = min(one.decode_score_s for one in receivers)
    found: list[_Scored] = []
    for rank_p, p in enumerate(prefills):
        if len(found) >= MAX_CANDIDATES and p.prefill_score_s + least_s > found[MAX_CANDIDATES - 1][0]:
            break
        decodes = common
        if p.view.worker_id in cut_off:
            reached = [d for d in receivers if _is_pair(p, d)]
            decodes = _best(reached, model.split_scores_s(p, reached))
        scores = model.split_scores_s(p, decodes)
        found += [
            (score_s, 1, rank_d * MAX_CANDIDATES + rank_p, p, d)
            for rank_d, (score_s, d) in enumerate(zip(scores, decodes, strict=True))
            if p is not d
        ]
        found.sort()
    return found


def _is_pair(prefill: CostTerms, decode: CostTerms) -> bool:
    return prefill is not decode and can_transfer(prefill.view, decode.view)


def _best(terms: list[CostTerms], scores: list[float]) -> list[CostTerms]:
    """Return the terms with the lowest scores; of equal ones, mixed roles come last, then names decide."""
    bound = sorted(scores)[:MAX_CANDIDATES][-1] if scores else 0.0
    found = [(score, one) for score, one in zip(scores, terms, strict=True) if score <= bound]
    found.sort(key=lambda one: (one[0], one[1].view.role is _MIXED, one[1].view.worker_id))
    return [one for _, one in found[:MAX_CANDIDATES]]


def _by_rank(
    model: CostModel, request: PlacementRequest, eligible: Eligible, policy: RoutingPolicy
) -> tuple[list[Candidate], int]:
    """Rank the halves by themselves; the score of a candidate is its rank.

    The request is split if its first decode worker can receive the prompt's blocks.
    """
    able = {one.worker_id: one for one in (*eligible.alone, *eligible.receivers)}
    decodes = rank(policy, request, Half.DECODE, tuple(able.values()))
    if decodes and decodes[0] in eligible.receivers:
        decode = decodes[0]
        partners = [one for one in eligible.prefillers if one is not decode and can_transfer(one, decode)]
        prefills = rank(policy, request, Half.PREFILL, partners)[:MAX_CANDIDATES]
        terms = model.terms([decode, *prefills])
        found = [model.split(terms[one.worker_id], terms[decode.worker_id]) for one in prefills]
        count = eligible.num_pairs
    else:
        names = {one.worker_id for one in eligible.alone}
        views = [one for one in decodes if one.worker_id in names][:MAX_CANDIDATES]
        found, count = [model.local(one) for one in model.terms(views).values()], len(names)
    return [ranked(one, number) for number, one in enumerate(found)], count
