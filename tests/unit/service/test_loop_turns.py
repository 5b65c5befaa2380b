from __future__ import annotations

import asyncio
import time

import pytest

from baton_service.loop_turns import LoopTurns

pytestmark = pytest.mark.slow


def test_the_turns_of_a_loop_are_counted_by_wall_time_and_by_its_own_cpu_time() -> None:
    turns = LoopTurns()

    async def work() -> None:
        await asyncio.sleep(0)
        time.sleep(0.3)  # noqa: ASYNC251 (what the loop is held up by)
        await asyncio.sleep(0)
        until_s = time.thread_time() + 0.2
        while time.thread_time() < until_s:
            pass
        await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=turns.make_loop) as runner:
        runner.run(work())
    longer_s = dict(turns.cpu_s.cumulative())
    assert longer_s["+Inf"] - longer_s["0.1"] == 1
    lags = dict(turns.lag_s.cumulative())
    assert lags["+Inf"] - lags["0.1"] >= 2
    assert turns.lag_s.count == turns.cpu_s.count
    assert turns.lag_s.total >= 0.5


def test_waiting_for_events_is_no_part_of_a_turn() -> None:
    turns = LoopTurns()
    with asyncio.Runner(loop_factory=turns.make_loop) as runner:
        runner.run(asyncio.sleep(0.5))
    assert turns.cpu_s.total < 0.5
