"""Every block has one owner, whatever goes wrong while a prompt's blocks move between two workers."""

from __future__ import annotations

import pytest

from baton_core.blocks.block_pool import BlockState
from baton_core.sessions.peer_messages import BlocksReady, LeaseGone, Subscribe
from baton_core.sessions.router_messages import FirstToken, Transferred
from baton_core.worker.worker_events import (
    AbortPull,
    PullAborted,
    PullDone,
    RouterLost,
    SendToConsumer,
    StepDone,
)
from baton_decode.core.transfer import PullTimings
from tests.builders import BLOCK_SIZE, make_request, step_result
from tests.unit.core.workers import ROUTER, Pair

MODES = pytest.mark.parametrize("by_checksum", [False, True], ids=["confirm", "checksum"])


# --- ownership and time ---


@MODES
def test_when_the_holder_falls_silent_the_puller_computes_the_prompt_itself(by_checksum: bool) -> None:
    pair = Pair(by_checksum=by_checksum)
    spec = make_request(prompt=10)
    pair.is_cut = True
    pair.begin(spec)
    pair.d.start("r", 500)
    pair.wait(7.9)
    assert pair.d.core.schedule(7.9) is None
    pair.wait(8.0)
    (moved,) = pair.d.heard(Transferred)
    assert moved.num_recomputed_tokens == 10
    assert pair.d.plan(8.0).slices[0].token_ids == (*spec.prompt_token_ids, 500)
    pair.wait(15.0)
    assert pair.p.core.pool.num_used == 0


def test_when_the_puller_falls_silent_the_holder_lets_go_after_ten_seconds() -> None:
    pair = Pair()
    pair.begin(make_request(prompt=10))
    pair.is_cut = True
    pair.p.wait(9.9)
    assert pair.p.core.pool.num_used == 3
    pair.p.wait(10.0)
    assert pair.p.core.pool.num_used == 0


def test_a_slow_prompt_is_waited_for_and_the_time_of_its_transfer_is_that_of_its_copies() -> None:
    pair = Pair(max_num_batched_tokens=8)
    spec = make_request(prompt=12)
    pair.reserve(spec)
    pair.carry(pair.p.prefill(spec))
    pair.carry(pair.p.step(now=1.0), now=1.0)
    pair.finish_pulls(now=1.5)
    for second in range(2, 60):
        pair.wait(float(second))
    pair.carry(pair.p.step(now=60.0), now=60.0)
    pair.finish_pulls(now=62.0)
    pair.d.start("r", 500, now=70.0)
    (moved,) = pair.d.heard(Transferred)
    assert (moved.num_recomputed_tokens, moved.transfer_s) == (0, 2.5)


def test_the_lease_of_a_puller_ends_before_that_of_the_holder() -> None:
    pair = Pair()
    spec = make_request(prompt=10)
    effects = pair.d.reserve(spec, now=0.0)
    pair.carry(pair.p.prefill(spec, now=0.0))
    pair.carry(effects, now=0.5)
    assert pair.p.core.next_deadline() == 10.5
    pair.is_cut = True
    pair.wait(10.4)
    assert pair.d.core.kv_pulls.num_transfers == 0
    assert pair.p.core.leases.num_open == 1


def test_a_late_subscription_for_a_cancelled_request_is_answered_with_a_tombstone() -> None:
    pair = Pair()
    spec = make_request(prompt=10)
    subscription = pair.d.reserve(spec)
    pair.prefill(spec)
    pair.p.cancel("r")
    assert pair.p.core.pool.num_used == 0
    (answer,) = pair._deliver(subscription[0], 1.0)
    assert isinstance(answer, SendToConsumer)
    assert isinstance(answer.message, LeaseGone)
    pair.carry([answer], now=1.0)
    assert pair.d.core.kv_pulls.num_transfers == 0


def test_a_prefill_cancelled_between_two_chunks_leaves_nothing() -> None:
    pair = Pair(max_num_batched_tokens=8)
    spec = make_request(prompt=12)
    pair.carry(pair.p.prefill(spec))
    plan = pair.p.plan()
    pair.p.cancel("r")
    assert pair.p.core.pool.num_used == 3
    pair.p.feed(StepDone(result=step_result(plan)))
    pair.assert_nothing_is_held()
    assert pair.p.heard(FirstToken) == []


@pytest.mark.parametrize("epoch", [0, 2])
def test_a_descriptor_of_another_epoch_is_refused_and_the_prompt_recomputed_at_once(epoch: int) -> None:
    pair = Pair()
    spec = make_request(prompt=10)
    pair.prefill(spec)
    pair.reserve(spec, epoch=epoch)
    pair.d.start("r", 500)
    assert pair.pulls == []
    assert pair.d.heard(Transferred)[0].num_recomputed_tokens == 10


def test_an_answer_of_an_earlier_epoch_moves_nothing() -> None:
    pair = Pair()
    (effect,) = pair.d.reserve(make_request(prompt=10), epoch=2)
    assert isinstance(effect.message, Subscribe)
    offers = BlocksReady(transfer_id=effect.message.transfer_id, producer_epoch=1, offers=(), renewal=0)
    assert pair.to_consumer(offers) == []


# --- content ---


def test_a_block_with_a_wrong_checksum_is_never_read_or_cached() -> None:
    pair = Pair(by_checksum=True)
    pair.broken_blocks = {1}
    pair.hand_over(make_request(prompt=14))
    (moved,) = pair.d.heard(Transferred)
    assert moved.num_recomputed_tokens == 10
    (piece,) = pair.d.plan().slices
    assert (piece.start, len(piece.token_ids), piece.block_tables[0][0]) == (4, 11, 0)
    valid = [block_id for block_id in range(16) if pair.d.core.pool.cache.hash_of(block_id) is not None]
    assert valid == [0, 2]


def test_without_confirmation_nothing_that_arrived_is_read() -> None:
    pair = Pair()
    pair.begin(make_request(prompt=10))
    pair.is_cut = True
    pair.p.wait(10.0)
    pair.finish_pulls(now=4.0)
    pair.d.start("r", 500, now=4.0)
    assert (pair.d.heard(Transferred), len(pair.d.core.pool.cache)) == ([], 0)
    pair.d.wait(12.0)
    assert pair.d.heard(Transferred)[0].num_recomputed_tokens == 10
    assert len(pair.d.core.pool.cache) == 0


def test_everyone_who_waited_for_a_lost_block_recomputes_from_there() -> None:
    pair = Pair(by_checksum=True, num_blocks=64)
    pair.broken_blocks = {1}
    specs = [make_request("a", prompt=10), make_request("b", prompt=14)]
    for spec in specs:
        pair.reserve(spec)
    for spec in specs:
        pair.prefill(spec)
    pair.finish_pulls()
    for spec in specs:
        pair.d.start(spec.request_id, 500)
    assert {moved.request_id: moved.num_recomputed_tokens for moved in pair.d.heard(Transferred)} == {
        "a": 6,
        "b": 10,
    }


# --- cancelling while blocks are on their way ---


def start_pull() -> Pair:
    """A decode worker with one pull in flight."""
    pair = Pair()
    pair.begin(make_request(prompt=8))
    assert len(pair.pulls) == 1
    return pair


def states(pair: Pair, *block_ids: int) -> set[BlockState]:
    return {pair.d.core.pool.state(block_id) for block_id in block_ids}


def test_a_cancel_during_a_pull_drains_it_first() -> None:
    pair = start_pull()
    assert pair.d.cancel("r") == [AbortPull(pull_id=1)]
    assert states(pair, 0, 1) == {BlockState.PULLING}
    pair.finish_pulls(now=1.0)
    assert states(pair, 0, 1) == {BlockState.FREE}
    pair.assert_nothing_is_held()


def test_an_unsafe_abort_quarantines_the_blocks_until_the_pull_is_over() -> None:
    pair = start_pull()
    pair.d.cancel("r")
    pair.d.feed(PullAborted(pull_id=1, is_fenced=False))
    assert states(pair, 0, 1) == {BlockState.QUARANTINED}
    pair.d.wait(1000.0)
    assert states(pair, 0, 1) == {BlockState.QUARANTINED}
    pair.finish_pulls(now=1000.0)
    assert states(pair, 0, 1) == {BlockState.FREE}


def test_a_safe_abort_frees_the_blocks_and_its_late_end_changes_nothing() -> None:
    pair = start_pull()
    pair.d.cancel("r")
    pair.carry(pair.d.feed(PullAborted(pull_id=1, is_fenced=True)))
    pair.assert_nothing_is_held()
    assert pair.d.feed(PullDone(pull_id=1)) == []


def test_a_fence_that_comes_after_the_deadline_still_frees_the_blocks() -> None:
    pair = start_pull()
    pair.d.cancel("r", now=1.0)
    pair.d.wait(9.0)
    assert states(pair, 0, 1) == {BlockState.QUARANTINED}
    pair.carry(pair.d.feed(PullAborted(pull_id=1, is_fenced=True), now=10.0), now=10.0)
    pair.assert_nothing_is_held()


def test_blocks_that_another_request_awaits_survive_the_cancel_of_their_importer() -> None:
    pair = start_pull()
    pair.reserve(make_request("other", prompt=8))
    assert pair.d.cancel("r") == []
    pair.finish_pulls()
    pair.d.start("other", 500)
    assert pair.d.heard(Transferred)[0].num_recomputed_tokens == 0


def test_what_is_computed_again_because_another_request_was_cancelled_says_so() -> None:
    pair = Pair()
    first = make_request(prompt=8)
    pair.reserve(first)
    pair.reserve(make_request("other", prompt=8))
    pair.d.cancel("r")
    pair.carry(pair.p.cancel("r"))
    pair.prefill(first)
    pair.carry(pair.p.cancel("r"))
    pair.d.wait(9.0)
    pair.d.start("other", 500, now=9.0)
    (moved,) = pair.d.heard(Transferred)
    assert moved.num_recomputed_tokens
    assert moved.is_cancel_the_cause


def test_a_request_cancelled_before_its_first_token_leaves_nothing_at_either_worker() -> None:
    pair = start_pull()
    pair.carry(pair.d.cancel("r"))
    pair.carry(pair.p.cancel("r"))
    pair.finish_pulls()
    pair.assert_nothing_is_held()


def test_a_lost_router_frees_reservations() -> None:
    pair = start_pull()
    pair.finish_pulls()
    pair.carry(pair.d.feed(RouterLost(router_id=ROUTER)))
    pair.assert_nothing_is_held()


def test_a_prefill_that_ends_at_its_first_token_is_held_until_it_is_cancelled() -> None:
    pair = Pair()
    pair.prefill(make_request(prompt=8, max_tokens=1))
    assert len(pair.p.heard(FirstToken)) == 1
    assert pair.p.core.leases.num_open == 1
    pair.p.cancel("r")
    pair.assert_nothing_is_held()


def test_two_prompts_that_each_fill_half_the_pool_are_prefilled_one_after_the_other() -> None:
    pair = Pair(num_blocks=8, max_num_batched_tokens=2 * BLOCK_SIZE)
    for name, first in (("a", 1), ("b", 300)):
        pair.carry(pair.p.prefill(make_request(name, prompt=20, first=first)))
    for _ in range(3):
        pair.p.step()
    assert pair.p.core.schedule(0.0) is None
    pair.p.wait(15.0)
    for _ in range(3):
        pair.p.step(now=15.0)
    assert [first.request_id for first in pair.p.heard(FirstToken)] == ["a", "b"]


def test_timings_can_be_set() -> None:
    pair = Pair(pull=PullTimings(lease_s=1.0, renew_s=0.25, pull_deadline_s=0.5))
    pair.is_cut = True
    pair.reserve(make_request(prompt=10))
    pair.wait(0.5)
    assert pair.d.core.kv_pulls.num_transfers == 0


@MODES
@pytest.mark.parametrize("is_failed", [False, True])
def test_blocks_of_a_connector_that_breaks_down_wait_for_its_copy(by_checksum: bool, is_failed: bool) -> None:
    """Nobody had asked for an abort, and none stops the copy."""
    pair = Pair(by_checksum=by_checksum)
    pair.begin(make_request(prompt=10))
    pair.d.start("r", 500)
    (pull,) = pair.pulls
    pair.carry(pair.d.feed(PullAborted(pull_id=pull.pull_id, is_fenced=False)))
    pool = pair.d.core.pool
    assert pool.num_quarantined == 3
    assert pair.d.heard(Transferred)[0].num_recomputed_tokens == 10
    failed = tuple(block.local_block_id for block in pull.blocks) if is_failed else ()
    pair.carry(pair.d.feed(PullDone(pull_id=pull.pull_id, failed_block_ids=failed)))
    assert pool.num_quarantined == 0
    while pair.d.core.num_requests:
        pair.carry(pair.d.step())
    pair.assert_nothing_is_held()
