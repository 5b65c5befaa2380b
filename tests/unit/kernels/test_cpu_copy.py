"""Copies of rows in host memory."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

from baton_kernels.cpu.copy import CpuCopy
from baton_kernels.cpu.variants import AVX2, AVX512, PLAIN, CpuVariant
from tests.unit.kernels.cpu_builds import load

ROW_BYTES: Final = (1, 48, 64, 192, 4096, 100_000)


@pytest.mark.parametrize("past_caches", [False, True])
@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize("row_bytes", ROW_BYTES)
@pytest.mark.parametrize("variant", [PLAIN, AVX2, AVX512], ids=lambda variant: variant.name)
def test_rows_arrive_and_their_neighbours_stay(
    variant: CpuVariant, row_bytes: int, offset: int, past_caches: bool
) -> None:
    rng = np.random.default_rng(row_bytes)
    source = rng.integers(0, 256, (9, row_bytes), np.uint8)
    memory = rng.integers(0, 256, 12 * row_bytes + offset, np.uint8)
    target = memory[offset:].reshape(12, row_bytes)
    expected = target.copy()
    source_rows, target_rows = np.array([8, 0, 3, 4]), np.array([0, 11, 5, 4])
    expected[target_rows] = source[source_rows]
    copy = CpuCopy(load(variant))
    copy(source, source_rows, target, target_rows, past_caches=past_caches)
    np.testing.assert_array_equal(target, expected)


def test_no_rows_are_no_work() -> None:
    target = np.ones((1, 64), np.uint8)
    none = np.empty(0, np.int64)
    CpuCopy(load(PLAIN))(np.zeros((1, 64), np.uint8), none, target, none, past_caches=True)
    assert target.all()


@pytest.mark.parametrize("rows", [[-1], [0, 2]])
def test_a_row_that_is_not_there_is_refused(rows: list[int]) -> None:
    source, target = np.zeros((2, 64), np.uint8), np.ones((2, 64), np.uint8)
    copy, known = CpuCopy(load(PLAIN)), np.arange(len(rows))
    with pytest.raises(IndexError, match="allowed: 0 to 1"):
        copy(source, np.array(rows), target, known, past_caches=False)
    with pytest.raises(IndexError, match="allowed: 0 to 1"):
        copy(source, known, target, np.array(rows), past_caches=False)
    assert target.all()
