"""A prompt's blocks on their way from one worker's core to another's, and what may go wrong there."""

from __future__ import annotations

from functools import partial

import pytest

from baton_core.errors import ErrorCode
from baton_core.sessions.router_messages import Refused, Reserved, TokenBatch, Transferred
from baton_core.worker.worker_events import ChecksumsFailed, ComputeChecksums, SendToProducer
from tests.builders import make_request
from tests.unit.core.workers import Pair

MODES = pytest.mark.parametrize("by_checksum", [False, True], ids=["confirm", "checksum"])


# --- the way it should go ---


@MODES
def test_a_prompt_is_computed_once_and_decoded_elsewhere(by_checksum: bool) -> None:
    pair = Pair(by_checksum=by_checksum)
    pair.hand_over(make_request(prompt=10, max_tokens=2))
    assert pair.d.heard(Reserved) == [Reserved(request_id="r", num_cached_tokens=0)]
    (moved,) = pair.d.heard(Transferred)
    block_bytes = pair.d.core.config.kv_spec.block_bytes
    assert (moved.num_blocks, moved.num_bytes, moved.num_recomputed_tokens) == (3, 3 * block_bytes, 0)
    (piece,) = pair.d.plan().slices
    assert (piece.start, piece.token_ids, piece.block_tables[0]) == (10, (500,), (0, 1, 2))
    assert piece.samples[0].position == 11
    assert pair.p.core.leases.num_open == 0


def test_blocks_are_pulled_chunk_by_chunk_while_the_prompt_is_computed() -> None:
    pair = Pair(max_num_batched_tokens=6)
    pair.begin(make_request(prompt=14))
    remote = [[block.remote_block_id for block in pull.blocks] for pull in pair.pulls]
    assert remote == [[0], [1, 2], [3]]


@pytest.mark.parametrize("is_token_first", [False, True])
def test_blocks_and_the_first_token_wait_for_each_other(is_token_first: bool) -> None:
    pair = Pair()
    pair.begin(make_request(prompt=10))
    steps = [pair.finish_pulls, partial(pair.d.start, "r", 500)]
    first, second = reversed(steps) if is_token_first else steps
    first()
    assert pair.d.core.schedule(0.0) is None
    second()
    assert pair.d.core.schedule(0.0) is not None


def test_siblings_share_one_import() -> None:
    pair = Pair()
    pair.hand_over(make_request(prompt=10, n=3))
    assert pair.num_pulled_blocks == 3
    plan = pair.d.plan()
    assert plan.block_copies == ((2, 3), (2, 4), (2, 5))
    assert [piece.block_tables[0] for piece in plan.slices] == [(0, 1, 3), (0, 1, 4), (0, 1, 5)]


def test_only_the_sequences_that_are_named_and_not_cancelled_are_decoded() -> None:
    pair = Pair()
    pair.begin(make_request(prompt=10, n=4))
    pair.d.start("r", 500, 501, 502)
    pair.d.cancel("r", 0)
    pair.finish_pulls()
    pair.d.step()
    (batch,) = pair.d.heard(TokenBatch)
    assert [output.index for output in batch.outputs] == [1, 2]


def test_a_reservation_whose_last_sequence_is_cancelled_is_dropped() -> None:
    pair = Pair()
    pair.begin(make_request(prompt=10, n=2))
    pair.d.start("r", 500, 501)
    pair.d.cancel("r", 0)
    pair.carry(pair.d.cancel("r", 1))
    pair.finish_pulls()
    pair.assert_nothing_is_held()
    assert pair.d.heard(Transferred) == []


def test_blocks_that_cannot_be_sealed_are_withdrawn_and_recomputed_by_the_puller() -> None:
    pair = Pair(by_checksum=True)
    spec = make_request(prompt=10)
    pair.carry(pair.p.prefill(spec))
    pair.p.step()
    (subscribe,) = pair.d.reserve(spec)
    assert isinstance(subscribe, SendToProducer)
    request = pair.to_producer(subscribe.message)[0]
    assert isinstance(request, ComputeChecksums)
    pair.carry(pair.p.feed(ChecksumsFailed(request=request, error="the device is gone")))
    pair.d.start("r", 500)
    assert pair.d.heard(Transferred)[0].num_recomputed_tokens == 10
    pair.wait(10.0)
    assert pair.p.core.pool.num_used == 0


def test_sixteen_requests_with_one_prefix_import_it_once() -> None:
    pair = Pair(num_blocks=256)
    specs = [make_request(f"r{number:02}", prompt=12) for number in range(16)]
    for spec in specs:
        pair.reserve(spec)
    for spec in specs:
        pair.prefill(spec)
    pair.finish_pulls()
    assert pair.num_pulled_blocks == 3
    for spec in specs:
        pair.d.start(spec.request_id, 500)
    assert len(pair.d.heard(Transferred)) == 16
    assert [len(pair.d.heard(kind)) for kind in (Reserved, Refused)] == [16, 0]


def test_requests_share_the_blocks_they_have_in_common_and_import_their_own() -> None:
    pair = Pair(num_blocks=64)
    pair.reserve(make_request("a", prompt=10))
    pair.reserve(make_request("b", prompt=14))
    assert [reserved.num_cached_tokens for reserved in pair.d.heard(Reserved)] == [0, 8]
    for name, prompt in (("a", 10), ("b", 14)):
        pair.prefill(make_request(name, prompt=prompt))
    pair.finish_pulls()
    assert pair.num_pulled_blocks == 3 + 2


def test_a_decode_worker_that_holds_everything_imports_nothing() -> None:
    pair = Pair()
    pair.hand_over(make_request("a", prompt=8))
    pair.d.cancel("a")
    effects = pair.d.reserve(make_request("b", prompt=8))
    assert effects == []
    assert pair.d.heard(Reserved)[-1].num_cached_tokens == 8
    pair.d.start("b", 500)
    moved = pair.d.heard(Transferred)[-1]
    assert (moved.num_blocks, moved.num_bytes, moved.transfer_s, moved.num_recomputed_tokens) == (
        0,
        0,
        0.0,
        0,
    )
    assert pair.d.plan().slices[0].start == 8


def test_tenants_share_no_blocks() -> None:
    pair = Pair()
    pair.hand_over(make_request("a", prompt=8))
    pair.reserve(make_request("b", prompt=8, cache_salt="tenant"))
    assert pair.d.heard(Reserved)[-1].num_cached_tokens == 0


# --- room ---


def test_at_most_half_of_the_pool_is_reserved() -> None:
    pair = Pair(num_blocks=8)
    pair.reserve(make_request("a", prompt=12))
    pair.reserve(make_request("b", prompt=8, first=100))
    (refused,) = pair.d.heard(Refused)
    assert (refused.request_id, refused.code) == ("b", ErrorCode.OVERLOADED)
    assert refused.message == "5 of 8 blocks are free"
    pair.reserve(make_request("c", prompt=4, first=200))
    assert len(pair.d.heard(Reserved)) == 2


def test_one_prompt_alone_may_reserve_more_than_half() -> None:
    pair = Pair(num_blocks=8)
    pair.reserve(make_request(prompt=24))
    assert len(pair.d.heard(Reserved)) == 1


def test_a_full_decode_worker_refuses_and_keeps_nothing() -> None:
    pair = Pair(num_blocks=4)
    pair.d.generate(make_request("busy", prompt=12, first=100))
    pair.d.plan()
    pair.reserve(make_request("r", prompt=8))
    assert [refused.request_id for refused in pair.d.heard(Refused)] == ["r"]
    assert (pair.d.core.num_requests, pair.d.core.pool.num_used) == (1, 3)
