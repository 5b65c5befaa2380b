"""Any snapshot: what is filtered is never chosen, and what is chosen has the least recorded score."""

from __future__ import annotations

from collections.abc import Container
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from baton_core.sessions.worker_info import Role
from baton_router.core.placement.eligibility import Unplaceable
from baton_router.core.placement.placement import Placement, place
from baton_router.core.placement.placement_config import PlacementConfig, SplitMode
from baton_router.core.placement.placement_cost import CostModel
from baton_router.core.placement.placement_snapshot import PlacementRequest, WorkerSpeed, WorkerView
from baton_router.core.placement.routing_policies import RoutingPolicy

rates = st.floats(1.0, 1e6)
speeds = st.builds(
    WorkerSpeed,
    prefill_tokens_per_s=rates,
    prefill_step_s=st.floats(0.0, 1.0),
    decode_step_s=st.floats(1e-4, 1.0),
    pull_bytes_per_s=rates,
)
views = st.builds(
    WorkerView,
    worker_id=st.sampled_from("abcdefgh"),
    role=st.sampled_from(Role),
    num_cached_tokens=st.integers(0, 250).map(lambda blocks: 16 * blocks),
    num_queued_tokens=st.integers(0, 10_000),
    num_sequences=st.integers(0, 40),
    can_reserve=st.booleans(),
    is_asleep=st.booleans(),
    is_draining=st.booleans(),
    is_faulty=st.booleans(),
    is_paused=st.booleans(),
    broken_sources=st.frozensets(st.sampled_from("abcdefgh"), max_size=4),
    max_model_len=st.integers(1, 9000),
    num_free_blocks=st.integers(0, 500),
    max_num_seqs=st.integers(1, 32),
    speed=speeds,
)
fleets = st.lists(views, max_size=8, unique_by=lambda view: view.worker_id)
requests = st.builds(
    PlacementRequest,
    request_id=st.text(max_size=3),
    num_prompt_tokens=st.integers(1, 4000),
    num_blocks=st.integers(1, 250),
    block_size=st.just(16),
    block_bytes=st.integers(1, 100_000),
    num_sequences=st.integers(1, 3),
    num_needed_tokens=st.integers(0, 8000),
    priority=st.integers(-9, 9),
    session_id=st.sampled_from(["", "s", "t"]),
    turn=st.integers(0, 99),
)
configs = st.builds(
    PlacementConfig,
    policy=st.sampled_from(RoutingPolicy),
    split=st.sampled_from(SplitMode),
    min_split_tokens=st.integers(1, 3000),
    stall_weight=st.floats(0.0, 10.0),
)
reasons = st.dictionaries(st.sampled_from("abcdefgh"), st.just("has refused it"), max_size=4)


@given(fleets, requests, configs, reasons)
def test_the_chosen_one_may_take_it_and_has_the_least_score(
    workers: list[WorkerView], request: PlacementRequest, config: PlacementConfig, excluded: dict[str, str]
) -> None:
    outcome, decision = place(request, workers, config, excluded)
    by_name = {view.worker_id: view for view in workers}
    if isinstance(outcome, Unplaceable):
        assert (decision.chosen, decision.candidates) == (None, ())
        largest = max((view.max_model_len for view in workers if view.role.can_decode), default=0)
        assert outcome.is_permanent or request.num_needed_tokens <= largest
        return
    scores = [candidate.cost.score_s for candidate in decision.candidates]
    assert decision.chosen == decision.candidates[0]
    assert scores == sorted(scores)
    assert len(scores) <= decision.num_candidates
    prefill, decode = by_name[outcome.prefill], by_name[outcome.decode]
    for view in (prefill, decode):
        assert not view.is_asleep
        assert not view.is_draining
        assert not view.is_faulty
        assert not view.is_paused
        assert request.num_needed_tokens <= view.max_model_len
        assert view.worker_id not in excluded
    assert decode.role.can_decode
    num_lacking = request.num_prompt_tokens - decode.num_cached_tokens
    if outcome.is_split:
        assert prefill.role.can_prefill
        assert decode.can_reserve
        assert prefill.worker_id not in decode.broken_sources
        assert config.split is not SplitMode.NEVER
        assert num_lacking >= (2 if config.split is SplitMode.ALWAYS else max(2, config.min_split_tokens))
    elif config.split is SplitMode.ALWAYS:
        assert num_lacking < 2
    out = {name for name, _ in decision.left_out}
    assert out.isdisjoint({outcome.prefill, outcome.decode})


@given(fleets, requests, configs, reasons)
def test_a_request_is_placed_where_one_worker_or_a_pair_may_take_it(
    workers: list[WorkerView], request: PlacementRequest, config: PlacementConfig, excluded: dict[str, str]
) -> None:
    free = _able(workers, request, excluded)
    decoders = [view for view in free if view.role.can_decode]
    least = 2 if config.split is SplitMode.ALWAYS else max(2, config.min_split_tokens)
    partners = {
        d.worker_id: [p for p in free if _is_pair(p, d)]
        for d in decoders
        if config.split is not SplitMode.NEVER and request.num_prompt_tokens - d.num_cached_tokens >= least
    }
    is_possible = any(d.can_reserve and partners.get(d.worker_id) for d in decoders) or any(
        d.worker_id not in partners
        if config.split is SplitMode.ALWAYS
        else d.can_reserve or d.role is Role.MIXED or not partners.get(d.worker_id)
        for d in decoders
    )
    outcome, _ = place(request, workers, config, excluded)
    assert isinstance(outcome, Placement) == is_possible


def _able(
    workers: list[WorkerView], request: PlacementRequest, excluded: Container[str] = ()
) -> list[WorkerView]:
    return [
        view
        for view in workers
        if not (view.is_asleep or view.is_paused or view.is_draining or view.is_faulty)
        and request.num_needed_tokens <= view.max_model_len
        and view.worker_id not in excluded
    ]


def _is_pair(p: WorkerView, d: WorkerView) -> bool:
    return p is not d and p.role.can_prefill and p.worker_id not in d.broken_sources


@given(fleets, requests)
def test_no_pair_and_no_worker_alone_is_cheaper_than_the_one_chosen(
    workers: list[WorkerView], request: PlacementRequest
) -> None:
    outcome, decision = place(request, workers, PlacementConfig(min_split_tokens=1))
    if not isinstance(outcome, Placement):
        return
    assert decision.chosen is not None
    model = CostModel(request, 1.0)
    terms = model.terms(workers)
    awake = _able(workers, request)
    decoders = [view for view in awake if view.role.can_decode]
    is_long = {view.worker_id: request.num_prompt_tokens - view.num_cached_tokens > 1 for view in decoders}
    pairs = [
        model.split(terms[p.worker_id], terms[d.worker_id]).cost.score_s
        for p, d in product(awake, decoders)
        if _is_pair(p, d) and d.can_reserve and is_long[d.worker_id]
    ]
    alone = [
        model.local(terms[view.worker_id]).cost.score_s
        for view in decoders
        if view.can_reserve or view.role is Role.MIXED
    ]
    assert decision.chosen.cost.score_s <= min([*pairs, *alone], default=float("inf"))
