"""The pools of a replay fit their loads."""

from __future__ import annotations

from bench.replay.loads import Arrival, Load
from bench.replay.worker_sizing import num_pool_blocks

LOAD = Load(arrivals=[Arrival(at_s=0.0, token_ids=[1] * length, num_tokens=10) for length in (54, 90)])


def test_a_pool_has_room_for_twice_the_whole_load() -> None:
    assert num_pool_blocks(LOAD, 32, 8, 2**30) == 2 * (2 + 1 + 4 + 1)


def test_a_pool_is_no_larger_than_the_memory_that_is_given() -> None:
    assert num_pool_blocks(LOAD, 32, 8, 5 * 32 * 8 + 1) == 5
