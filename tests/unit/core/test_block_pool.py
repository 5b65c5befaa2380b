"""Exact block ids: who gets which block, in which order blocks are reused, and who may write them."""

from __future__ import annotations

import pytest

from baton_core.blocks.block_pool import BlockPool, BlockState


def make_pool(num_blocks: int = 6, *, cached: bytes = b"") -> BlockPool:
    """A pool with one cached block per byte of `cached`, the first byte released first."""
    pool = BlockPool(num_blocks)
    block_ids = pool.allocate(len(cached)) or []
    for block_id, name in zip(block_ids, cached, strict=True):
        pool.publish(block_id, bytes([name]))
    for block_id in block_ids:
        pool.release([block_id])
    pool.cache.take_delta()
    return pool


def import_blocks(pool: BlockPool, *hashes: bytes | None) -> list[int]:
    block_ids = pool.begin_pull(hashes)
    assert block_ids is not None
    return block_ids


# --- free list and eviction ---


def test_blocks_are_given_out_from_zero() -> None:
    pool = make_pool()
    assert pool.allocate(2) == [0, 1]
    assert pool.allocate(1) == [2]


def test_freed_blocks_queue_up_behind_those_never_used() -> None:
    pool = make_pool(4)
    pool.release(pool.allocate(2) or [])
    assert pool.allocate(4) == [2, 3, 1, 0]


def test_release_frees_the_tail_of_a_table_first() -> None:
    pool = make_pool(3)
    assert pool.allocate(3) == [0, 1, 2]
    pool.release([0, 1, 2])
    assert pool.allocate(3) == [2, 1, 0]


def test_allocation_takes_all_or_nothing() -> None:
    pool = make_pool(3)
    assert pool.allocate(4) is None
    assert pool.num_free == 3
    assert pool.allocate(0) == []


def test_free_blocks_are_used_before_cached_ones() -> None:
    pool = make_pool(4, cached=b"ab")
    assert (pool.num_free, pool.num_cached, pool.num_available, pool.num_used) == (2, 2, 4, 0)
    assert pool.allocate(2) == [2, 3]
    assert pool.num_cached == 2


def test_the_block_released_longest_ago_is_evicted_first() -> None:
    pool = make_pool(3, cached=b"abc")
    assert pool.allocate(1) == [0]
    assert pool.cache.snapshot().stored == (b"b", b"c")
    delta = pool.cache.take_delta()
    assert delta is not None
    assert (delta.stored, delta.removed) == ((), (b"a",))


def test_a_prefix_hit_makes_a_block_young_again() -> None:
    pool = make_pool(3, cached=b"abc")
    pool.share([0])
    pool.release([0])
    assert pool.allocate(3) == [1, 2, 0]


def test_a_prefix_outlives_its_extension() -> None:
    pool = make_pool(3)
    table = pool.allocate(3) or []
    for block_id, name in zip(table, (b"a", b"b", b"c"), strict=True):
        pool.publish(block_id, name)
    pool.release(table)
    assert pool.allocate(1) == [2]
    assert [pool.cache.find(name) for name in (b"a", b"b", b"c")] == [0, 1, None]


def test_what_nobody_uses_can_be_forgotten_at_once() -> None:
    pool = make_pool(4, cached=b"abcd")
    pool.share([0])
    pool.lease([1])
    pool.cache.take_delta()
    assert pool.forget_cached() == 2
    assert (pool.num_free, pool.num_cached, pool.num_used) == (2, 0, 2)
    delta = pool.cache.take_delta()
    assert delta is not None
    assert (delta.stored, set(delta.removed)) == ((), {b"c", b"d"})
    assert pool.forget_cached() == 0
    pool.check_invariants()


def test_shared_and_held_blocks_are_never_evicted() -> None:
    pool = make_pool(3, cached=b"abc")
    pool.share([0])
    pool.lease([1])
    assert pool.allocate(2) is None
    assert pool.allocate(1) == [2]


def test_each_time_a_block_is_given_out_its_generation_changes() -> None:
    pool = make_pool(1)
    generations = []
    for _ in range(3):
        pool.release(pool.allocate(1) or [])
        generations.append(pool.generation(0))
    assert generations == [1, 2, 3]


# --- references ---


def test_a_block_stays_active_until_its_last_sequence_lets_go() -> None:
    pool = make_pool()
    table = pool.allocate(1) or []
    pool.share(table)
    pool.release(table)
    assert pool.state(0) is BlockState.ACTIVE
    pool.release(table)
    assert pool.state(0) is BlockState.FREE


def test_a_lease_keeps_what_its_sequence_releases() -> None:
    pool = make_pool()
    table = pool.allocate(2) or []
    pool.publish(0, b"a")
    pool.lease(table)
    pool.release(table)
    assert [pool.state(block_id) for block_id in table] == [BlockState.HELD, BlockState.HELD]
    pool.end_lease(table)
    assert [pool.state(block_id) for block_id in table] == [BlockState.CACHED, BlockState.FREE]


def test_a_held_block_can_be_shared_and_leased_again() -> None:
    pool = make_pool(cached=b"a")
    pool.lease([0])
    pool.lease([0])
    pool.share([0])
    assert pool.state(0) is BlockState.ACTIVE
    pool.release([0])
    pool.end_lease([0])
    assert pool.state(0) is BlockState.HELD


def test_the_end_of_a_lease_does_not_touch_an_active_block() -> None:
    pool = make_pool()
    table = pool.allocate(1) or []
    pool.lease(table)
    pool.end_lease(table)
    assert pool.state(0) is BlockState.ACTIVE


@pytest.mark.parametrize("method", ["release", "end_lease"])
def test_a_reference_that_nobody_has_cannot_be_dropped(method: str) -> None:
    pool = make_pool(cached=b"a")
    with pytest.raises(AssertionError, match="block 0 has no"):
        getattr(pool, method)([0])


# --- writing ---


def test_a_block_is_writable_while_one_sequence_alone_can_read_it() -> None:
    pool = make_pool()
    pool.allocate(1)
    assert pool.is_writable(0)
    pool.share([0])
    assert not pool.is_writable(0)
    pool.release([0])
    assert pool.is_writable(0)


def test_a_findable_block_is_not_writable() -> None:
    pool = make_pool()
    pool.allocate(1)
    pool.publish(0, b"a")
    assert not pool.is_writable(0)


def test_a_leased_block_is_not_writable() -> None:
    pool = make_pool()
    pool.allocate(1)
    pool.lease([0])
    assert not pool.is_writable(0)


def test_the_second_block_with_a_content_stays_private() -> None:
    pool = make_pool()
    pool.allocate(2)
    pool.publish(0, b"a")
    pool.publish(1, b"a")
    assert pool.cache.find(b"a") == 0
    pool.release([0, 1])
    assert [pool.state(0), pool.state(1)] == [BlockState.CACHED, BlockState.FREE]


def test_a_block_keeps_the_first_hash_it_was_published_with() -> None:
    pool = make_pool()
    pool.allocate(1)
    pool.publish(0, b"a")
    pool.publish(0, b"b")
    assert pool.cache.snapshot().stored == (b"a",)


# --- imports ---


def test_an_importing_block_is_neither_readable_nor_writable_nor_findable() -> None:
    pool = make_pool()
    assert import_blocks(pool, b"a", None) == [0, 1]
    pool.share([0, 1])
    assert not pool.is_valid(0)
    assert not pool.is_writable(1)
    assert pool.cache.find(b"a") is None
    assert pool.cache.find_pulling(b"a") == 0
    with pytest.raises(AssertionError, match="importing"):
        pool.publish(1, b"b")


def test_a_verified_block_is_readable_and_findable() -> None:
    pool = make_pool()
    import_blocks(pool, b"a")
    pool.share([0])
    pool.verify(0)
    assert pool.state(0) is BlockState.ACTIVE
    assert (pool.cache.find(b"a"), pool.cache.find_pulling(b"a")) == (0, None)


@pytest.mark.parametrize(("block_hash", "state"), [(b"a", BlockState.CACHED), (None, BlockState.FREE)])
def test_a_verified_block_that_nobody_awaits_is_cached_if_it_has_a_name(
    block_hash: bytes | None, state: BlockState
) -> None:
    pool = make_pool()
    import_blocks(pool, block_hash)
    pool.verify(0)
    assert pool.state(0) is state


def test_a_content_computed_meanwhile_makes_the_import_private() -> None:
    pool = make_pool()
    import_blocks(pool, b"a")
    pool.share([0])
    pool.allocate(1)
    pool.publish(1, b"a")
    pool.verify(0)
    assert pool.cache.find(b"a") == 1
    pool.release([0])
    assert pool.state(0) is BlockState.FREE


def test_a_lost_import_is_free_again_and_never_findable() -> None:
    pool = make_pool(1)
    import_blocks(pool, b"a")
    pool.discard(0)
    assert pool.state(0) is BlockState.FREE
    assert pool.cache.find(b"a") is None
    assert pool.cache.find_pulling(b"a") is None
    assert pool.allocate(1) == [0]


def test_a_quarantined_block_is_given_out_only_after_the_fence() -> None:
    pool = make_pool(1)
    import_blocks(pool, b"a")
    pool.quarantine(0)
    assert pool.cache.find_pulling(b"a") is None
    assert pool.allocate(1) is None
    assert pool.num_used == 1
    pool.fence(0)
    assert pool.allocate(1) == [0]


@pytest.mark.parametrize("method", ["discard", "quarantine"])
def test_an_awaited_import_cannot_be_given_up(method: str) -> None:
    pool = make_pool()
    import_blocks(pool, b"a")
    pool.share([0])
    with pytest.raises(AssertionError, match="awaited"):
        getattr(pool, method)(0)


def test_an_import_takes_all_or_nothing() -> None:
    pool = make_pool(2)
    assert pool.begin_pull([None, None, None]) is None
    assert pool.num_free == 2


def test_an_import_may_evict() -> None:
    pool = make_pool(1, cached=b"a")
    assert import_blocks(pool, b"b") == [0]
    assert pool.cache.find(b"a") is None
