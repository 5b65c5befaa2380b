from __future__ import annotations

import numpy as np
import pytest

from baton_kv.pull_chunks import CHUNK_BYTES, ChunkPlan

KB = 1024


@pytest.mark.parametrize(
    ("num_blocks", "block_bytes", "shapes"),
    [
        (1, 256, [(1, 256)]),
        (5, 1024 * KB, [(4, 1024 * KB), (1, 1024 * KB)]),
        (4, 1500 * KB, [(2, 1500 * KB)] * 2),
        (2, CHUNK_BYTES, [(1, CHUNK_BYTES)] * 2),
        (2, CHUNK_BYTES + 8, [(1, CHUNK_BYTES), (1, 8)] * 2),
        (0, 256, []),
    ],
)
def test_chunks_are_as_large_as_fits(
    num_blocks: int, block_bytes: int, shapes: list[tuple[int, int]]
) -> None:
    plan = ChunkPlan(num_blocks, block_bytes)
    chunks = [plan[number] for number in range(len(plan))]
    assert [chunk.shape for chunk in chunks] == shapes
    assert all(chunk.num_bytes <= CHUNK_BYTES for chunk in chunks)


@pytest.mark.parametrize("block_bytes", [KB, 3 * CHUNK_BYTES // 4, CHUNK_BYTES, 5 * CHUNK_BYTES // 2])
@pytest.mark.parametrize("num_blocks", [1, 3, 9])
def test_chunks_cover_every_byte_once_and_in_order(num_blocks: int, block_bytes: int) -> None:
    plan = ChunkPlan(num_blocks, block_bytes)
    covered = np.zeros((num_blocks, block_bytes), bool)
    for number in range(len(plan)):
        part = covered[plan[number].blocks, plan[number].columns]
        assert part.shape == plan[number].shape
        assert not part.any()
        part[:] = True
    assert covered.all()
