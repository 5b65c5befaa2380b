"""Lines of batches begin in turn, all at once where nobody else asks, and one at a time beside others."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from baton_router.core.batches.line_pace import QUIET_S, LinePace, RequestLoad
from baton_router.operations.line_gate import LineGate

pytestmark = pytest.mark.slow


def load(num_others: int, num_waiting: int = 0, num_prefilling: int = 0, num_workers: int = 1) -> RequestLoad:
    return RequestLoad(
        num_others=num_others, num_waiting=num_waiting, num_prefilling=num_prefilling, num_workers=num_workers
    )


def may_begin(pace: LinePace, now: float, seen: RequestLoad) -> bool:
    pace.note(now, seen)
    return pace.may_begin(now, seen)


def test_lines_alone_begin_all_at_once() -> None:
    pace = LinePace()
    assert may_begin(pace, 0.0, load(0))
    pace.num_lines = 7
    assert may_begin(pace, 0.1, load(0, num_prefilling=7))
    assert not may_begin(pace, 0.2, load(0, num_waiting=1)), "there is no room for more"


def test_few_lines_run_beside_others_until_they_are_gone_a_while() -> None:
    pace = LinePace(0.25)
    assert not may_begin(pace, 5.0, load(1, num_prefilling=1))
    assert may_begin(pace, 5.0, load(1, num_prefilling=1, num_workers=2))
    assert may_begin(pace, 5.1, load(1))
    pace.num_lines = 1
    assert not may_begin(pace, 5.2, load(1))
    assert may_begin(pace, 5.2, load(1, num_workers=8)), "two of them for eight workers"
    pace.end(6.0, 0.5, load(1))
    assert not may_begin(pace, 7.4, load(1))
    assert pace.next_s(7.4) == 7.5, "it ran for a quarter of two seconds"
    assert may_begin(pace, 7.5, load(1))
    pace.end(7.5, 100.0, load(1))
    pace.num_lines = 0
    assert not may_begin(pace, 7.6, load(0)), "another one may come soon"
    assert pace.next_s(7.6) == 7.5 + QUIET_S
    assert may_begin(pace, 7.5 + QUIET_S, load(0))


def test_without_any_lines_beside_others_they_wait_for_quiet() -> None:
    pace = LinePace(0.0)
    assert not may_begin(pace, 5.0, load(1))
    pace.num_lines = 1
    pace.end(5.0, 1.0, load(1))
    assert pace.next_s(5.0) == 5.0 + QUIET_S
    assert may_begin(pace, 5.0 + QUIET_S, load(0))


async def test_the_gate_lets_lines_in_by_turn_and_forgets_those_that_are_cancelled() -> None:
    seen = load(0, num_workers=0)
    gate = LineGate(lambda: seen, 1.0)
    begun: list[str] = []
    go_on = asyncio.Event()

    async def line(name: str) -> None:
        async with gate.line():
            begun.append(name)
            await go_on.wait()

    async with AsyncExitStack() as stack:
        tasks = [asyncio.create_task(line(name)) for name in "abcd"]
        stack.callback(go_on.set)
        await asyncio.sleep(0)
        assert begun == [], "there is no worker"
        seen = load(1)
        tasks[0].cancel()
        gate.note()
        await asyncio.sleep(0)
        assert begun == ["b"]
        tasks[1].cancel()
        await asyncio.wait(tasks[:2])
        await asyncio.sleep(0)
        assert begun == ["b", "c"]
        seen = load(0)
        async with asyncio.timeout(20 * QUIET_S):
            await asyncio.sleep(QUIET_S / 2)
            assert begun == ["b", "c"]
            await asyncio.sleep(QUIET_S)
        assert begun == ["b", "c", "d"], "nobody else asked"
    await asyncio.wait(tasks)
