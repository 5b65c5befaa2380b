"""The blocks of several KV groups on their way between two workers: only what decoding needs moves."""

from __future__ import annotations

import pytest

from baton_core.kv_layout.paging import NO_BLOCK
from baton_core.sessions.router_messages import Refused, Reserved, Transferred
from baton_core.worker.step_plan import SequenceSlice
from tests.builders import make_kv_spec, make_request
from tests.unit.core.workers import Pair

GROUPS = make_kv_spec((None, 6))


def first_slice(pair: Pair) -> SequenceSlice:
    return pair.d.plan().slices[0]


@pytest.mark.parametrize("by_checksum", [False, True])
def test_blocks_before_the_window_stay_where_they_are(by_checksum: bool) -> None:
    pair = Pair(by_checksum=by_checksum, kv_spec=GROUPS)
    pair.hand_over(make_request(prompt=14, max_tokens=2))
    (moved,) = pair.d.heard(Transferred)
    assert (moved.num_blocks, moved.num_recomputed_tokens, pair.num_pulled_blocks) == (6, 0, 6)
    piece = first_slice(pair)
    assert (piece.start, piece.token_ids) == (14, (500,))
    assert piece.block_tables == ((0, 1, 2, 3), (NO_BLOCK, NO_BLOCK, 4, 5))
    assert pair.p.core.leases.num_open == 0


def test_blocks_of_every_group_are_announced_chunk_by_chunk() -> None:
    pair = Pair(kv_spec=GROUPS, max_num_batched_tokens=6)
    pair.begin(make_request(prompt=14))
    remote = [[block.remote_block_id for block in pull.blocks] for pull in pair.pulls]
    assert remote == [[0], [1, 2, 6], [3, 7]]


def test_what_is_cached_at_the_decode_worker_does_not_move() -> None:
    pair = Pair(kv_spec=GROUPS)
    pair.hand_over(make_request("a", prompt=16))
    pair.d.cancel("a")
    assert pair.d.reserve(make_request("b", prompt=16)) == []
    assert pair.d.heard(Reserved)[-1].num_cached_tokens == 16
    pair.d.start("b", 500)
    assert first_slice(pair).block_tables == ((0, 1, 2, 3, 6), (NO_BLOCK, NO_BLOCK, 4, 5, 7))


def test_a_longer_prompt_imports_what_the_shorter_one_left_out() -> None:
    pair = Pair(kv_spec=GROUPS, num_blocks=64)
    pair.hand_over(make_request("a", prompt=12))
    pair.reserve(make_request("b", prompt=20))
    assert pair.d.heard(Reserved)[-1].num_cached_tokens == 12
    pair.prefill(make_request("b", prompt=20))
    pair.finish_pulls()
    assert pair.num_pulled_blocks == (3 + 2) + (2 + 2)


def test_without_a_block_of_its_window_a_prompt_is_computed_anew() -> None:
    pair = Pair(by_checksum=True, kv_spec=GROUPS)
    pair.broken_blocks = {6}
    pair.hand_over(make_request(prompt=14))
    assert pair.d.heard(Transferred)[0].num_recomputed_tokens == 14
    piece = first_slice(pair)
    assert (piece.start, len(piece.token_ids)) == (0, 15)
    assert NO_BLOCK not in piece.block_tables[1]


def test_a_prefix_that_every_group_supports_outlives_a_lost_block() -> None:
    pair = Pair(by_checksum=True, kv_spec=make_kv_spec((None, 12)))
    pair.broken_blocks = {3}
    pair.hand_over(make_request(prompt=14))
    assert pair.d.heard(Transferred)[0].num_recomputed_tokens == 2
    assert first_slice(pair).start == 12


def test_the_half_of_the_pool_is_counted_in_blocks_that_move() -> None:
    pair = Pair(kv_spec=GROUPS, num_blocks=16)
    pair.reserve(make_request("a", prompt=14))
    pair.reserve(make_request("b", prompt=4, first=100))
    assert [reserved.request_id for reserved in pair.d.heard(Reserved)] == ["a", "b"]
    pair.reserve(make_request("c", prompt=1, first=200))
    assert [refused.request_id for refused in pair.d.heard(Refused)] == ["c"]
