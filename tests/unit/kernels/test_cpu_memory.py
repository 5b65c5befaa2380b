"""Large results take turns in the same memory, and only when nobody refers to it."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

from baton_kernels.cpu.graph_replay import GraphReplay
from baton_kernels.cpu.memory import MAX_KEPT_BYTES, MIN_BYTES, ResultMemory, capacity_for, huge_zeros

LARGE = (1024, 1000)


def test_a_freed_result_makes_room_for_the_next_of_like_size() -> None:
    memory = ResultMemory()
    first = memory.empty(LARGE, torch.float32)
    address = first.data_ptr()
    del first
    assert memory.empty((990, 1024), torch.float32).data_ptr() == address


def test_a_view_keeps_its_memory() -> None:
    memory = ResultMemory()
    first = memory.empty(LARGE, torch.float32).fill_(1)
    view = first.split(400, dim=1)[1]
    del first
    memory.empty(LARGE, torch.float32).fill_(2)
    assert memory.kept_bytes == capacity_for(4 * 1024 * 1000)
    assert (view == 1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_what_it_returns(dtype: torch.dtype) -> None:
    result = ResultMemory().empty((3, 1024, 1024), dtype)
    assert (result.shape, result.dtype) == ((3, 1024, 1024), dtype)
    assert result.is_contiguous()
    assert result.data_ptr() % 64 == 0


def test_small_results_are_not_kept() -> None:
    memory = ResultMemory()
    result = memory.empty((MIN_BYTES - 1,), torch.int8)
    del result
    assert memory.kept_bytes == 0


def test_what_is_kept_is_bounded_and_the_longest_unused_goes_first() -> None:
    memory = ResultMemory()
    quarter = (MAX_KEPT_BYTES // 4,)
    results = [memory.empty((MIN_BYTES,), torch.int8), *(memory.empty(quarter, torch.int8) for _ in range(4))]
    address = results[-1].data_ptr()
    while results:
        del results[0]
    assert memory.kept_bytes == MAX_KEPT_BYTES
    fresh = [memory.empty(quarter, torch.int8) for _ in range(4)]
    assert address in [tensor.data_ptr() for tensor in fresh]
    assert memory.kept_bytes == 0


@pytest.mark.parametrize("num_bytes", [MIN_BYTES, MIN_BYTES + 1, 5 << 20, 6 << 20, (6 << 20) + 1, 100 << 20])
def test_capacities(num_bytes: int) -> None:
    assert num_bytes <= capacity_for(num_bytes) <= num_bytes * 3 // 2


def test_the_collector_may_free_a_result_while_another_is_taken() -> None:
    memory = ResultMemory()
    for distance in range(60):
        unused = [memory.empty((MIN_BYTES,), torch.int8) for _ in range(8)]
        unused.clear()
        gc.collect()
        cycle: list[object] = [memory.empty((3 * MIN_BYTES,), torch.int8)]
        cycle.append(cycle)
        del cycle
        num_padding = gc.get_threshold()[0] - gc.get_count()[0] - distance
        padding: list[list[object]] = [[] for _ in range(num_padding)]
        memory.empty((MIN_BYTES,), torch.int8)
        padding.clear()


def test_a_recorded_pass_keeps_its_results() -> None:
    memory, x = ResultMemory(), torch.ones(LARGE)

    def compute() -> torch.Tensor:
        inner = memory.empty(LARGE, torch.float32)
        torch.add(x, 1, out=inner)
        return inner[:, :1].sum()

    with torch.inference_mode():
        recorded, result = GraphReplay.record(compute)
        memory.empty(LARGE, torch.float32).fill_(7)
        x.fill_(2)
        recorded.replay()
    assert result.item() == 3 * 1024
    assert memory.kept_bytes == capacity_for(x.nbytes)


def test_threads_never_share_a_result() -> None:
    memory, wrong = ResultMemory(), []

    def use(number: int) -> None:
        for _ in range(200):
            result = memory.empty((MIN_BYTES // 4,), torch.float32)
            result[::1024] = number
            if not (result[::1024] == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert memory.kept_bytes <= MAX_KEPT_BYTES


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("shape", [(3, 5, 7), (0, 4), (3, 1 << 20)], ids=str)
def test_a_pool_of_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    pool = huge_zeros(shape, dtype)
    assert (pool.shape, pool.dtype, pool.is_contiguous()) == (shape, dtype, True)
    assert not pool.float().any()
    assert pool.float().add_(1).eq(pool.copy_(torch.ones(shape)).float()).all()
