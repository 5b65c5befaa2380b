"""The workers that may take each part of a request, and the reasons where there are none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from baton_core.sessions.worker_info import Role
from baton_router.core.placement.filters import NO_WORKERS, available, reason_against
from baton_router.core.placement.placement_config import PlacementConfig, SplitMode
from baton_router.core.placement.placement_record import MAX_CANDIDATES
from baton_router.core.placement.placement_snapshot import PlacementRequest, WorkerView
from baton_router.core.placement.routing_policies import RoutingPolicy

_PREFILL, _DECODE, _MIXED = Role
"""Members as variables: access through the enumeration takes longer than the comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplaceable:
    """No worker can take the request; `is_permanent` until another worker joins or wakes up."""

    reason: str
    is_permanent: bool
    may_pass: bool = False
    """True if there are workers for it, but none has room, or an operator has paused them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eligible:
    """The workers that may take each part of a request, after the filters."""

    decoders: Sequence[WorkerView]
    prefillers: Sequence[WorkerView]
    alone: Sequence[WorkerView]
    """Workers that may take the whole request."""
    splitters: Sequence[WorkerView]
    """Decode workers for which a prefill worker exists and enough of the prompt is missing."""
    receivers: Sequence[WorkerView]
    """Splitters with room for the prompt's blocks."""
    are_named: bool = False
    """True if an endpoint picker has chosen them."""

    @property
    def num_pairs(self) -> int:
        """Number of pairs of a prefill worker and another worker that receives its blocks."""
        names = {one.worker_id for one in self.prefillers}
        num_unreached = sum(len(names & {one.worker_id, *one.broken_sources}) for one in self.receivers)
        return len(self.receivers) * len(names) - num_unreached


def can_transfer(prefill: WorkerView, decode: WorkerView) -> bool:
    """Return True unless blocks of one worker are known not to arrive at the other."""
    return prefill.worker_id not in decode.broken_sources


def find_eligible(
    request: PlacementRequest,
    workers: Sequence[WorkerView],
    config: PlacementConfig,
    excluded: Mapping[str, str],
) -> Eligible:
    """Filter the workers and divide them by role, split mode and room.

    A full worker that prefers to decode computes no prompt that a prefill worker could compute. Where nothing
    is decoded after the prompt, prefill workers take a request alone that would be split.
    """
    free = available(request, workers, excluded)
    if (named := _named(request, free, config)) is not None:
        return named
    if request.is_pooling:
        able = [one for one in free if one.role is not _DECODE]
        return Eligible(decoders=able, prefillers=able, alone=able, splitters=[], receivers=[])
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
            has_partner = any(p is not one and can_transfer(p, one) for p in prefillers)
        can_split = is_long and has_partner and not is_never
        if can_split:
            splitters.append(one)
        must_split = is_long and is_always
        keeps_to_decoding = can_split and not one.can_reserve and one.role is _DECODE
        if not (must_split or keeps_to_decoding):
            alone.append(one)
    if splitters and not request.is_decoded:
        alone, splitters = _undecoded(alone, prefillers, splitters, config), []
    receivers = [one for one in splitters if one.can_reserve]
    return Eligible(
        decoders=decoders, prefillers=prefillers, alone=alone, splitters=splitters, receivers=receivers
    )


def _undecoded(
    alone: Sequence[WorkerView],
    prefillers: Sequence[WorkerView],
    splitters: Sequence[WorkerView],
    config: PlacementConfig,
) -> list[WorkerView]:
    """Return the workers that may take a request alone that would be split, but is not decoded.

    Policies that predict no times leave a prompt to prefill workers wherever they would split it.
    """
    splitting = set() if config.policy is RoutingPolicy.COST else {one.worker_id for one in splitters}
    views = {one.worker_id: one for one in alone if one.worker_id not in splitting}
    return list((views | {one.worker_id: one for one in prefillers}).values())


def _named(request: PlacementRequest, free: Sequence[WorkerView], config: PlacementConfig) -> Eligible | None:
    """Return the workers that an endpoint picker has chosen; None where they cannot take the request now."""
    if request.named is None:
        return None
    views = {one.worker_id: one for one in free}
    prefill, decode = views.get(request.named.prefill), views.get(request.named.decode)
    if prefill is None or decode is None:
        return None
    if prefill is decode:
        able = decode.role.can_prefill if request.is_pooling else decode.role.can_decode
        one = [decode]
        return (
            Eligible(decoders=one, prefillers=one, alone=one, splitters=[], receivers=[], are_named=True)
            if able and config.split is not SplitMode.ALWAYS
            else None
        )
    can_split = config.split is not SplitMode.NEVER and can_transfer(prefill, decode) and decode.can_reserve
    if request.is_pooling or not (can_split and prefill.role.can_prefill and decode.role.can_decode):
        return None
    receivers = [decode]
    return Eligible(
        decoders=receivers,
        prefillers=[prefill],
        alone=[],
        splitters=receivers,
        receivers=receivers,
        are_named=True,
    )


def find_decoders(
    request: PlacementRequest,
    workers: Sequence[WorkerView],
    prefill: str,
    excluded: Mapping[str, str],
    *,
    is_computed: bool,
) -> Eligible:
    """Return the workers that may decode a prompt of the worker `prefill`; that one only as the last."""
    holders = [one for one in workers if one.worker_id == prefill]
    others = [one for one in workers if one.worker_id != prefill]
    able = [one for one in available(request, others, excluded) if one.role.can_decode and one.can_reserve]
    receivers = [one for one in able if prefill not in one.broken_sources]
    is_last = is_computed and not any(one.role.can_decode for one in available(request, others))
    alone = [one for one in available(request, holders, excluded) if is_last and one.role.can_decode]
    return Eligible(
        decoders=receivers or alone,
        prefillers=holders,
        alone=alone,
        splitters=receivers,
        receivers=receivers,
    )


def why_unplaceable(
    request: PlacementRequest, workers: Sequence[WorkerView], config: PlacementConfig, eligible: Eligible
) -> Unplaceable:
    """Return the reason for which a request has no candidates."""
    return absence(request, workers, config) or _shortage(request, workers, config, eligible)


def absence(
    request: PlacementRequest, workers: Sequence[WorkerView], config: PlacementConfig
) -> Unplaceable | None:
    """Return the reason if no worker could take it even with room.

    A draining worker counts as absent. A faulty one does not: most faults pass.
    """
    computes, kind = _last_part(request)
    decoders = [one for one in workers if computes(one)]
    if not decoders:
        return Unplaceable(reason=f"no {kind} worker is registered", is_permanent=True)
    largest, num_tokens = max(one.max_model_len for one in decoders), request.num_needed_tokens
    if num_tokens > largest:
        most = f"the largest max_model_len of a {kind} worker is {largest}"
        return Unplaceable(reason=f"the request needs {num_tokens} tokens; {most}", is_permanent=True)
    fitting = [one for one in workers if num_tokens <= one.max_model_len]
    able = f"that holds {num_tokens} tokens " if len(fitting) < len(workers) else ""
    present = [one for one in fitting if not (one.is_asleep or one.is_draining)]
    if not any(computes(one) for one in present):
        is_asleep = all(one.is_asleep for one in fitting if computes(one))
        does = "sleeps" if is_asleep else "sleeps or drains"
        return Unplaceable(reason=f"every {kind} worker {able}{does}", is_permanent=True)
    if config.split is SplitMode.ALWAYS and not _has_pair(present):
        return Unplaceable(reason=f"no prefill worker {able}is registered and awake", is_permanent=True)
    able_weights = [one for one in present if request.weights in ("", one.weights)]
    if not any(computes(one) for one in able_weights):
        return Unplaceable(reason=f"no {kind} worker {able}has weights {request.weights}", is_permanent=False)
    if config.split is SplitMode.ALWAYS and not _has_pair(able_weights):
        return Unplaceable(
            reason=f"no prefill worker {able}has weights {request.weights}", is_permanent=False
        )
    return None


def _shortage(
    request: PlacementRequest, workers: Sequence[WorkerView], config: PlacementConfig, eligible: Eligible
) -> Unplaceable:
    """Return the reason for which present workers cannot take it now."""
    computes, kind = _last_part(request)
    well = available(request, workers)
    stopped = _stopped(request, workers)
    if not any(computes(one) for one in well):
        return _stop(f"every {kind} worker", [one for one in stopped if computes(one)])
    if config.split is SplitMode.ALWAYS and not _has_pair(well):
        if well[0].role.can_prefill:
            return _stop("every other worker", stopped)
        return _stop("every prefill worker", [one for one in stopped if one.role.can_prefill])
    if not eligible.decoders:
        why = f"every {kind} worker is full"
    elif eligible.splitters:
        why = "no decode worker has room for the prompt"
    elif any(one is not other for one in eligible.prefillers for other in eligible.decoders):
        return Unplaceable(reason="no prefill worker's blocks arrive at a decode worker", is_permanent=False)
    else:
        why = "every prefill worker is full"
    return Unplaceable(reason=why, is_permanent=False, may_pass=True)


def _stopped(request: PlacementRequest, workers: Sequence[WorkerView]) -> list[WorkerView]:
    """Return the workers that are faulty or paused, and have no other reason against the request."""
    anywhere = replace(request, data_parallel_rank=None)
    return [
        one
        for one in workers
        if (one.is_faulty or one.is_paused)
        and reason_against(anywhere, one._replace(is_faulty=False, is_paused=False), NO_WORKERS) is None
    ]


def _stop(which: str, stopped: Sequence[WorkerView]) -> Unplaceable:
    """Return the reason where workers are faulty or paused; what an operator has paused may be resumed."""
    is_paused = [one.is_paused and not one.is_faulty for one in stopped]
    if not any(is_paused):
        return Unplaceable(reason=f"{which} is faulty", is_permanent=False)
    does = "paused" if all(is_paused) else "paused or faulty"
    return Unplaceable(reason=f"{which} is {does}", is_permanent=False, may_pass=True)


def _last_part(request: PlacementRequest) -> tuple[Callable[[WorkerView], bool], str]:
    """Return what tells the workers that may end a request, and the name of their kind."""
    if request.is_pooling:
        return (lambda view: view.role.can_prefill), "prefill"
    return (lambda view: view.role.can_decode), "decode"


def _has_pair(views: Sequence[WorkerView]) -> bool:
    """Return True if one worker may prefill for another, given that one decodes."""
    return any(one.role.can_prefill for one in views) and len(views) > 1


def left_out(
    request: PlacementRequest,
    workers: Sequence[WorkerView],
    config: PlacementConfig,
    eligible: Eligible,
    excluded: Mapping[str, str],
) -> tuple[tuple[str, str], ...]:
    """Return the first workers that were no candidates, each with the reason."""
    receivers = eligible.receivers
    taken = {one.worker_id for one in (*eligible.alone, *receivers)}
    if receivers:
        taken |= {one.worker_id for one in eligible.prefillers}
    out = [one for one in workers if one.worker_id not in taken] if len(taken) < len(workers) else []
    return tuple(
        (
            one.worker_id,
            reason_against(request, one, excluded) or _role_reason(request, one, config, eligible),
        )
        for one in out[:MAX_CANDIDATES]
    )


def _role_reason(
    request: PlacementRequest, view: WorkerView, config: PlacementConfig, eligible: Eligible
) -> str:
    if view.role.can_decode and not view.can_reserve:
        return "has no room for the prompt"
    if view.role is _PREFILL and config.split is SplitMode.AUTO:
        num_cached = min((one.num_cached_tokens for one in eligible.decoders), default=0)
        if (num_missing := request.num_prompt_tokens - num_cached) < config.min_split_tokens:
            least = f"min_split_tokens is {config.min_split_tokens}"
            return f"decode workers lack at most {num_missing} tokens; {least}"
    return f"is not needed in its role, {view.role}"
