"""Where a request runs: filter, score, pick, over a pure snapshot of the workers.

Nothing here is random or remembered: equal snapshots give equal decisions. docs/placement.md explains them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from baton_core.routing.placement_cost import CostModel, Terms, ranked
from baton_core.routing.placement_record import MAX_CANDIDATES, Candidate, Decision
from baton_core.routing.placement_snapshot import PlacementRequest, WorkerView
from baton_core.routing.routing_policies import Half, RoutingPolicy, rank
from baton_core.sessions.worker_info import Role

_PREFILL, _DECODE, _MIXED = Role
"""Looked up once: finding a member of an enumeration takes longer than what is done with it here."""
NOBODY: Final[Mapping[str, str]] = MappingProxyType({})


class SplitMode(StrEnum):
    AUTO = "auto"
    """Split where the policy prefers it and enough of the prompt has to be computed."""
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementConfig:
    policy: RoutingPolicy = RoutingPolicy.COST
    split: SplitMode = SplitMode.AUTO
    min_split_tokens: int = 32
    """Uncached prompt tokens from which `auto` splits."""
    stall_weight: float = 1.0
    """What a second of stall, of one running sequence, weighs against a second until the first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """`prefill` and `decode` are the same worker when the request is not split."""

    prefill: str
    decode: str
    reason: str

    @property
    def is_split(self) -> bool:
        return self.prefill != self.decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplaceable:
    """No worker can take the request; `is_permanent` until another worker joins or wakes up."""

    reason: str
    is_permanent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """Who may do what, after the filters."""

    decoders: list[WorkerView]
    prefillers: list[WorkerView]
    alone: list[WorkerView]
    """May take the whole request."""
    splitters: list[WorkerView]
    """Lack enough of the prompt to be handed it by a prefill worker, of which there is one."""
    receivers: list[WorkerView]
    """Those of the splitters that have room."""


def place(
    request: PlacementRequest,
    workers: Sequence[WorkerView],
    config: PlacementConfig,
    excluded: Mapping[str, str] = NOBODY,
) -> tuple[Placement | Unplaceable, Decision]:
    """Choose workers for a prompt; `excluded` are those that must not get it, each with the reason."""
    choice = _filter(request, workers, config, excluded)
    candidates, count = _score(request, choice, config)
    left_out = _left_out(workers, choice, excluded)
    if not candidates:
        why = _absence(workers, config) or Unplaceable(reason=_why_full(choice), is_permanent=False)
        return why, _decision(request, config, [], why.reason, left_out=left_out)
    best = candidates[0]
    reason = _reason(request, best, config)
    placement = Placement(prefill=best.prefill, decode=best.decode, reason=reason)
    return placement, _decision(request, config, candidates, reason, count=count, left_out=left_out)


def place_decoder(
    request: PlacementRequest,
    workers: Sequence[WorkerView],
    prefill: str,
    config: PlacementConfig,
    excluded: Mapping[str, str] = NOBODY,
    *,
    is_computed: bool = False,
) -> tuple[str | None, Decision]:
    """Choose another decode worker for a prompt that `prefill` computes or has computed; None without one.

    Once it `is_computed`, that worker goes on with it by itself if it decodes and no other one does any more.
    """
    holders = [one for one in workers if one.worker_id == prefill]
    others = [one for one in workers if one.worker_id != prefill]
    able = [one for one in _available(others, excluded) if one.role.can_decode and one.can_reserve]
    receivers = [one for one in able if prefill not in one.broken_sources]
    is_last = is_computed and not any(one.role.can_decode for one in _available(others, NOBODY))
    alone = [one for one in _available(holders, excluded) if is_last and one.role.can_decode]
    choice = _Choice(
        decoders=receivers or alone,
        prefillers=holders,
        alone=alone,
        splitters=receivers,
        receivers=receivers,
    )
    candidates, count = _score(request, choice, config)
    left_out = _left_out(workers, choice, excluded)
    if not candidates:
        return None, _decision(request, config, [], "no other decode worker has room", left_out=left_out)
    best = candidates[0]
    reason = f"moved: {prefill} keeps the prompt; {_why(best, config)}"
    return best.decode, _decision(request, config, candidates, reason, count=count, left_out=left_out)


# --- filter ---


def _absence(workers: Sequence[WorkerView], config: PlacementConfig) -> Unplaceable | None:
    """Why nobody could take it even with room; a worker that drains is as good as absent."""
    decoders = [one for one in workers if one.role.can_decode]
    if not decoders:
        return Unplaceable(reason="no decode worker is registered", is_permanent=True)
    present = [one for one in workers if not (one.is_asleep or one.is_draining)]
    if not any(one.role.can_decode for one in present):
        does = "sleeps" if all(one.is_asleep for one in decoders) else "sleeps, drains or is faulty"
        return Unplaceable(reason=f"every decode worker {does}", is_permanent=True)
    has_pair = any(one.role.can_prefill for one in present) and len(present) > 1
    if config.split is SplitMode.ALWAYS and not has_pair:
        return Unplaceable(reason="no prefill worker is registered and awake", is_permanent=True)
    return None


def _available(workers: Sequence[WorkerView], excluded: Mapping[str, str]) -> list[WorkerView]:
    return [
        one for one in workers if not (one.is_asleep or one.is_draining) and one.worker_id not in excluded
    ]


def _filter(
    request: PlacementRequest,
    workers: Sequence[WorkerView],
    config: PlacementConfig,
    excluded: Mapping[str, str],
) -> _Choice:
    """A worker that prefers to decode and is full computes no prompt that a prefill worker could."""
    free = _available(workers, excluded)
    decoders = [one for one in free if one.role is not _PREFILL]
    prefillers = [one for one in free if one.role is not _DECODE]
    is_never, is_always = config.split is SplitMode.NEVER, config.split is SplitMode.ALWAYS
    most_cached = request.num_prompt_tokens - (2 if is_always else max(2, config.min_split_tokens))
    alone: list[WorkerView] = []
    splitters: list[WorkerView] = []
    for one in decoders:
        is_long = one.num_cached_tokens <= most_cached
        has_partner = len(prefillers) > (one.role is _MIXED)
        if one.broken_sources and has_partner:
            has_partner = any(p is not one and _is_whole(p, one) for p in prefillers)
        can_split = is_long and has_partner and not is_never
        if can_split:
            splitters.append(one)
        must_split = is_long and is_always
        keeps_to_decoding = can_split and not one.can_reserve and one.role is _DECODE
        if not (must_split or keeps_to_decoding):
            alone.append(one)
    receivers = [one for one in splitters if one.can_reserve]
    return _Choice(
        decoders=decoders, prefillers=prefillers, alone=alone, splitters=splitters, receivers=receivers
    )


def _is_whole(prefill: WorkerView, decode: WorkerView) -> bool:
    """Whether blocks of one arrive at the other."""
    return prefill.worker_id not in decode.broken_sources


def _why_full(choice: _Choice) -> str:
    if not choice.decoders:
        return "every decode worker is full"
    return "no decode worker has room for the prompt" if choice.splitters else "every prefill worker is full"


def _left_out(
    workers: Sequence[WorkerView], choice: _Choice, excluded: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """The first of those that were no candidates."""
    receivers = choice.receivers
    taken = _names(choice.alone) | _names(receivers) | _names(choice.prefillers if receivers else ())
    out = [one for one in workers if one.worker_id not in taken] if len(taken) < len(workers) else []
    return tuple((one.worker_id, _why_out(one, excluded)) for one in out[:MAX_CANDIDATES])


def _why_out(view: WorkerView, excluded: Mapping[str, str]) -> str:
    if view.is_asleep:
        return "sleeps"
    if view.is_draining:
        return "drains or is faulty"
    if (why := excluded.get(view.worker_id)) is not None:
        return why
    if view.role.can_decode and not view.can_reserve:
        return "has no room for the prompt"
    return f"is not needed in its role, {view.role}"


def _names(views: Sequence[WorkerView]) -> set[str]:
    return {one.worker_id for one in views}


# --- score and pick ---


def _score(
    request: PlacementRequest, choice: _Choice, config: PlacementConfig
) -> tuple[list[Candidate], int]:
    """The best candidates in order, and how many there are."""
    model = CostModel(request, config.stall_weight)
    if config.policy is RoutingPolicy.COST:
        return _by_cost(model, choice)
    return _by_rank(model, request, choice, config.policy)


_Scored = tuple[float, int, int, Terms, Terms]
"""Score, whether split, rank among equal ones, and who prefills and decodes."""


def _by_cost(model: CostModel, choice: _Choice) -> tuple[list[Candidate], int]:
    """Of equal scores, those that are not split come first."""
    views = (*choice.alone, *choice.prefillers, *choice.receivers)
    known = model.terms({view.worker_id: view for view in views}.values())
    locals_ = [known[view.worker_id] for view in choice.alone]
    alone = _best(locals_, [one.local_score_s for one in locals_])
    scored = [(one.local_score_s, 0, rank, one, one) for rank, one in enumerate(alone)]
    if num_pairs := _num_pairs(choice):
        prefillers = [known[view.worker_id] for view in choice.prefillers]
        receivers = [known[view.worker_id] for view in choice.receivers]
        scored += _pairs(model, prefillers, receivers)
    best = [one[-2:] for one in sorted(scored)[:MAX_CANDIDATES]]
    candidates = [model.local(p) if p is d else model.split(p, d) for p, d in best]
    return candidates, len(choice.alone) + num_pairs


def _pairs(model: CostModel, prefillers: list[Terms], receivers: list[Terms]) -> list[_Scored]:
    """The best prefill workers, each with the decode workers that are best with the very best of them.

    Those that come later are left out where they cannot be among the best pairs any more.
    """
    prefills = _best(prefillers, [one.prefill_score_s for one in prefillers])
    decodes = _best(receivers, model.split_scores_s(prefills[0], receivers))
    least_s = min(one.decode_score_s for one in decodes)
    found: list[_Scored] = []
    for rank_p, p in enumerate(prefills):
        if len(found) >= MAX_CANDIDATES and p.prefill_score_s + least_s > found[MAX_CANDIDATES - 1][0]:
            break
        scores = model.split_scores_s(p, decodes)
        found += [
            (score_s, 1, rank_d * MAX_CANDIDATES + rank_p, p, d)
            for rank_d, (score_s, d) in enumerate(zip(scores, decodes, strict=True))
            if p is not d and _is_whole(p.view, d.view)
        ]
        found.sort()
    return found


def _best(terms: list[Terms], scores: list[float]) -> list[Terms]:
    """In order; equal ones by role, those that prefer one thing first, and then by name."""
    bound = sorted(scores)[:MAX_CANDIDATES][-1] if scores else 0.0
    found = [(score, one) for score, one in zip(scores, terms, strict=True) if score <= bound]
    found.sort(key=lambda one: (one[0], one[1].view.role is _MIXED, one[1].view.worker_id))
    return [one for _, one in found[:MAX_CANDIDATES]]


def _by_rank(
    model: CostModel, request: PlacementRequest, choice: _Choice, policy: RoutingPolicy
) -> tuple[list[Candidate], int]:
    """What a policy without costs takes, and what it would take next; the score is the rank.

    The decode worker that comes first decides by what it lacks whether the request is split.
    """
    first = rank(policy, request, Half.DECODE, choice.decoders)[:1]
    if not _names(first) & _names(choice.splitters):
        views = rank(policy, request, Half.DECODE, choice.alone)[:MAX_CANDIDATES]
        found, count = [model.local(one) for one in model.terms(views).values()], len(choice.alone)
    else:
        decodes = rank(policy, request, Half.DECODE, choice.receivers)[:1]
        others = [one for one in choice.prefillers if one.worker_id not in _names(decodes)]
        partners = [one for one in others if all(_is_whole(one, decode) for decode in decodes)]
        prefills = rank(policy, request, Half.PREFILL, partners)[:MAX_CANDIDATES]
        found = [
            model.split(prefill, decode)
            for decode in model.terms(decodes).values()
            for prefill in model.terms(prefills).values()
        ]
        count = _num_pairs(choice)
    return [ranked(one, number) for number, one in enumerate(found)], count


def _num_pairs(choice: _Choice) -> int:
    receivers = choice.receivers
    num_both = len(_names(choice.prefillers) & _names(receivers))
    return len(choice.prefillers) * len(receivers) - num_both


# --- record ---


def _decision(
    request: PlacementRequest,
    config: PlacementConfig,
    candidates: list[Candidate],
    reason: str,
    *,
    count: int = 0,
    left_out: tuple[tuple[str, str], ...],
) -> Decision:
    return Decision(
        policy=config.policy,
        at_s=request.at_s,
        chosen=candidates[0] if candidates else None,
        reason=reason,
        candidates=tuple(candidates),
        num_candidates=count,
        left_out=left_out,
    )


def _reason(request: PlacementRequest, best: Candidate, config: PlacementConfig) -> str:
    num_lacking = request.num_prompt_tokens - best.num_local_tokens
    where = "alone" if best.prefill == best.decode else "split"
    return f"{where} (split={config.split}): {best.decode} lacks {num_lacking} tokens; {_why(best, config)}"


def _why(best: Candidate, config: PlacementConfig) -> str:
    if config.policy is not RoutingPolicy.COST:
        return f"the first by {config.policy}"
    cost = best.cost
    return (
        f"TTFT {cost.ttft_s:.3f} s + gap {cost.gap_s:.3f} s + stall {cost.stall_s:.3f} s "
        f"give {cost.score_s:.3f} s, the least"
    )
