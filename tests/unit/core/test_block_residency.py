"""How long sampled KV blocks stay, by the time that the pool's owner tells."""

from __future__ import annotations

import pytest

from baton_core.blocks.block_pool import BlockPool
from baton_core.blocks.block_residency import BlockResidency


def make_pool(num_blocks: int, share: float = 1.0) -> tuple[BlockPool, BlockResidency]:
    residency = BlockResidency(share)
    return BlockPool(num_blocks, residency=residency), residency


def cache_block(pool: BlockPool, name: bytes, now: float) -> int:
    """Allocate a block and leave it in the cache."""
    pool.now = now
    (block_id,) = pool.allocate(1) or []
    pool.publish(block_id, name)
    pool.release([block_id])
    return block_id


def use(pool: BlockPool, block_id: int, now: float) -> None:
    pool.now = now
    pool.share([block_id])
    pool.release([block_id])


def totals(residency: BlockResidency) -> list[tuple[int, float]]:
    return [(one.count, one.total) for one in residency.distributions]


def test_a_block_is_measured_from_its_allocation_to_its_eviction() -> None:
    pool, residency = make_pool(1)
    block_id = cache_block(pool, b"a", now=1.0)
    for now in (2.0, 5.0, 9.0):
        use(pool, block_id, now)
    assert totals(residency) == [(0, 0), (0, 0), (2, 3.0 + 4.0)], "between uses, the allocation is none"
    cache_block(pool, b"b", now=20.0)
    assert totals(residency) == [(1, 19.0), (1, 11.0), (2, 7.0)]
    cache_block(pool, b"c", now=21.5)
    assert totals(residency) == [(2, 20.5), (2, 12.5), (2, 7.0)], "never used: idle all the time"


def test_what_is_freed_otherwise_is_not_evicted() -> None:
    pool, residency = make_pool(1)
    cache_block(pool, b"a", now=1.0)
    pool.forget_cached()
    pool.now = 2.0
    pool.release(pool.allocate(1) or [])
    cache_block(pool, b"b", now=4.0)
    assert totals(residency) == [(0, 0)] * 3
    cache_block(pool, b"c", now=5.0)
    assert totals(residency)[0] == (1, 1.0), "since its last allocation"


def test_sequences_that_part_do_not_find_the_block_that_they_fill() -> None:
    pool, residency = make_pool(2)
    found, filled = pool.allocate(2) or []
    pool.publish(found, b"a")
    for pool.now in (1.0, 3.0):
        pool.share([found, filled])
    assert totals(residency)[2] == (1, 2.0)


def test_a_block_that_is_written_is_not_used() -> None:
    pool, residency = make_pool(1)
    (block_id,) = pool.begin_pull([b"a"]) or []
    pool.share([block_id])
    pool.share([block_id])
    pool.verify(block_id)
    pool.release([block_id, block_id])
    use(pool, block_id, now=3.0)
    use(pool, block_id, now=4.0)
    assert totals(residency)[2] == (1, 1.0)


@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
def test_the_share_of_blocks_is_sampled_and_always_the_same_ones(share: float) -> None:
    found = []
    for _ in range(2):
        pool, residency = make_pool(1, share)
        for number in range(2001):
            cache_block(pool, number.to_bytes(2, "big"), now=number**2)
        found.append(totals(residency))
    assert found[0] == found[1]
    assert found[0][0][0] == pytest.approx(2000 * share, rel=0.02)
