"""Both ways to a pool's bytes; the one over a device's memory runs on the CPU here, as its own device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from baton_core.errors import InvalidConfigError
from baton_kv.part_reads import PoolPart
from baton_kv.pool_bytes import DevicePool, HostPool, PoolBytes, open_pool, require_blocks

Open = Callable[[Tensor], PoolBytes]


@pytest.fixture(params=[HostPool, DevicePool])
def open_rows(request: pytest.FixtureRequest) -> Open:
    return request.param


@pytest.fixture(params=[48, 30])
def rows(request: pytest.FixtureRequest) -> Tensor:
    """`[6, block_bytes]`, of a size that is and one that is not a multiple of 8 bytes."""
    return torch.randint(0, 256, (6, request.param), dtype=torch.uint8)


def test_a_read_gathers_blocks_in_the_order_asked_for(open_rows: Open, rows: Tensor) -> None:
    out = np.zeros((3, rows.shape[1]), np.uint8)
    open_rows(rows).read([5, 0, 5], slice(0, rows.shape[1]), out)
    assert np.array_equal(out, rows[[5, 0, 5]].numpy())


def test_a_read_may_take_some_bytes_of_each_block(open_rows: Open, rows: Tensor) -> None:
    out = np.zeros((2, 16), np.uint8)
    open_rows(rows).read([1, 4], slice(8, 24), out)
    assert np.array_equal(out, rows[[1, 4], 8:24].numpy())


def test_a_view_shows_blocks_one_after_the_other_and_in_place_where_it_can(
    open_rows: Open, rows: Tensor
) -> None:
    pool = open_rows(rows)
    pieces = pool.view([4, 1], slice(8, 24))
    assert b"".join(pieces) == rows[[4, 1], 8:24].numpy().tobytes()
    pieces[0][0] ^= 1
    assert pool.is_in_place == (rows[4, 8] == pieces[0][0])


def test_a_write_changes_the_named_blocks_alone(open_rows: Open, rows: Tensor) -> None:
    before = rows.clone()
    pool = open_rows(rows)
    for num_blocks in (1, 3, 2):
        new = np.random.default_rng(num_blocks).integers(0, 256, (num_blocks, rows.shape[1]), np.uint8)
        block_ids = [4, 0, 2][:num_blocks]
        pool.write(block_ids, slice(0, new.shape[1]), new)
        before[block_ids] = torch.from_numpy(new)
        new[:] = 0
        assert torch.equal(rows, before)


def test_a_block_is_shown_whole(open_rows: Open, rows: Tensor) -> None:
    pool = open_rows(rows)
    assert len(pool) == 6
    assert bytes(pool.block(3)) == rows[3].numpy().tobytes()


@pytest.mark.parametrize("columns", [slice(0, 16), slice(4, 12), slice(8, 16)])
def test_ranges_of_each_block_are_a_pool_of_their_own(open_rows: Open, rows: Tensor, columns: slice) -> None:
    before = rows.clone()
    part = PoolPart(open_rows(rows), [slice(0, 8), slice(16, 24)])
    expected = torch.cat([rows[:, :8], rows[:, 16:24]], 1)[:, columns]
    assert (len(part), part.block_bytes) == (6, 16)
    out = np.zeros((3, expected.shape[1]), np.uint8)
    part.read([5, 0, 5], columns, out)
    assert np.array_equal(out, expected[[5, 0, 5]].numpy())
    assert b"".join(part.view([4, 1], columns)) == expected[[4, 1]].numpy().tobytes()
    part.write([2], columns, out[:1] ^ 255)
    untouched = torch.ones(rows.shape[1], dtype=torch.bool)
    untouched[torch.cat([torch.arange(8), torch.arange(16, 24)])[columns]] = False
    assert torch.equal(rows[2, ~untouched], torch.from_numpy(out[0] ^ 255))
    assert torch.equal(rows[:, untouched], before[:, untouched])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_a_pool_of_any_type_is_opened_in_place(dtype: torch.dtype) -> None:
    pool = torch.zeros(2, 3, 2, 1, 4, 4).to(dtype)
    opened = open_pool(pool)
    assert isinstance(opened, HostPool)
    opened.write([1], slice(0, opened.block_bytes), np.full((1, opened.block_bytes), 255, np.uint8))
    assert pool.view(torch.uint8)[1].eq(255).all()
    assert not pool.view(torch.uint8)[0].any()


def test_a_pool_without_blocks_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="num_blocks is 0; allowed: 1 or more"):
        require_blocks(0)
