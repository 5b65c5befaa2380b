"""A prompt that is decoded where it was computed, although it was meant for another worker."""

from __future__ import annotations

from typing import Any

import pytest

from baton_core.kv_layout.paging import NO_BLOCK
from baton_core.requests.phases import TokenSources
from baton_core.sessions.peer_messages import LeaseGone, Subscribe
from baton_core.sessions.router_messages import RequestSpec, Reserve, Reserved, Transferred
from baton_core.worker.step_plan import StepPlan
from baton_core.worker.worker_events import FromConsumer, SendToConsumer
from tests.builders import make_kv_spec, make_prompt, make_request, make_source, make_worker_config
from tests.unit.core.workers import Worker

CHANGES = pytest.mark.parametrize(
    "changes", [{}, {"enable_prefix_caching": False}, {"is_verified_by_checksum": True}]
)


def computed(spec: RequestSpec, **changes: Any) -> Worker:
    """A worker, the source of its own reservations, that holds a prompt for whoever pulls it."""
    worker = Worker(make_worker_config("p", **changes))
    worker.prefill(spec)
    worker.step()
    assert (worker.core.num_requests, worker.core.leases.num_open) == (0, 1)
    return worker


def go_on(worker: Worker, spec: RequestSpec, *, now: float = 0.0) -> tuple[StepPlan, Transferred]:
    """Have it decode the prompt itself: its next step, and what it said of the blocks."""
    worker.reserve(spec, now=now)
    assert worker.core.leases.num_open == 0
    worker.start("r", *[500] * spec.params.n, now=now)
    plan = worker.plan(now)
    (transferred,) = worker.heard(Transferred)
    return plan, transferred


@CHANGES
def test_it_goes_on_with_the_blocks_that_were_held_for_another(changes: dict[str, Any]) -> None:
    spec = make_request(prompt=10)
    worker = computed(spec, **changes)
    plan, said = go_on(worker, spec)
    (piece,) = plan.slices
    assert (piece.start, piece.token_ids, piece.block_tables) == (10, (500,), ((0, 1, 2),))
    assert piece.samples[0].position == 11
    assert (said.num_blocks, said.num_bytes, said.num_recomputed_tokens) == (0, 0, 0)
    assert worker.heard(Reserved) == [Reserved(request_id="r", num_cached_tokens=10)]


def test_it_goes_on_with_the_window_of_each_group() -> None:
    spec = make_request(prompt=14)
    plan, said = go_on(computed(spec, kv_spec=make_kv_spec((None, 6))), spec)
    (piece,) = plan.slices
    assert (piece.start, said.num_recomputed_tokens) == (14, 0)
    assert piece.block_tables == ((0, 1, 2, 3), (NO_BLOCK, NO_BLOCK, 6, 7))


def test_its_sequences_copy_the_last_block_when_they_write_to_it() -> None:
    spec = make_request(prompt=10, n=2)
    plan, _ = go_on(computed(spec), spec)
    assert plan.block_copies == ((2, 3), (2, 4))
    assert [piece.block_tables[0] for piece in plan.slices] == [(0, 1, 3), (0, 1, 4)]


def test_it_takes_nothing_more_of_a_pool_that_is_full() -> None:
    spec = make_request(prompt=15)
    worker = computed(spec, num_blocks=8)
    other = Reserve(spec=make_request("other", prompt=16, first=100), source=make_source("elsewhere"))
    worker.command(other)
    assert worker.core.pool.num_available == 0
    plan, _ = go_on(worker, spec)
    assert plan.slices[0].block_tables == ((0, 1, 2, 3),)


def test_nothing_is_left_of_it_and_each_token_has_one_source() -> None:
    spec = make_request(prompt=10, max_tokens=2)
    worker = computed(spec)
    worker.reserve(spec)
    worker.start("r", 500)
    worker.step()
    worker.cancel("r")
    assert (worker.core.num_requests, worker.core.pool.num_used, worker.core.next_deadline()) == (0, 0, None)
    sources = [report.sources for report in worker.reports]
    assert sources == [TokenSources(num_computed=10), TokenSources(num_local_cache=10)]


@pytest.mark.parametrize("is_findable", [True, False])
def test_what_is_not_held_any_more_is_found_or_computed_again(is_findable: bool) -> None:
    spec = make_request(prompt=10)
    worker = computed(spec, enable_prefix_caching=is_findable)
    worker.wait(15.0)
    plan, said = go_on(worker, spec, now=15.0)
    (piece,) = plan.slices
    num_here = 8 if is_findable else 0
    assert (piece.start, said.num_recomputed_tokens) == (num_here, 10 - num_here)
    assert piece.token_ids == (*make_prompt(10)[num_here:], 500)


def test_whoever_pulls_it_is_told_and_what_is_read_is_not_written() -> None:
    spec = make_request(prompt=10)
    worker = computed(spec)
    ask = Subscribe(transfer_id="t", request_id="r", producer_epoch=1, indices=(0, 1, 2), lease_s=9.0)
    worker.feed(FromConsumer(peer_id=b"d", message=ask))
    gone = LeaseGone(transfer_id="t", producer_epoch=1, reason="it is decoded where it was computed")
    assert worker.reserve(spec) == [SendToConsumer(peer_id=b"d", message=gone)]
    worker.start("r", 500)
    assert worker.plan().block_copies == ((2, 3),)


def test_blocks_that_are_held_for_a_name_are_nothing_to_one_that_comes_from_elsewhere() -> None:
    worker = computed(make_request(prompt=10, first=100))
    worker.command(Reserve(spec=make_request(prompt=10), source=make_source("elsewhere")))
    assert worker.heard(Reserved) == [Reserved(request_id="r", num_cached_tokens=0)]
