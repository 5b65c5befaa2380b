"""Lines of batches begin in turn, all at once where nobody else asks, and one at a time beside others."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from baton_router.core.batches.line_pace import MAX_BESIDE, QUIET_S, LinePace, RequestLoad
from baton_router.operations.line_gate import LineGate


def load(num_requests: int, num_waiting: int = 0, num_prefilling: int = 0) -> RequestLoad:
    return RequestLoad(num_requests=num_requests, num_waiting=num_waiting, num_prefilling=num_prefilling)


def may_begin(pace: LinePace, now: float, seen: RequestLoad) -> bool:
    pace.note(now, seen)
    return pace.may_begin(now, seen)


def test_lines_alone_begin_all_at_once() -> None:
    pace = LinePace()
    assert may_begin(pace, 0.0, load(0))
    pace.num_lines = 7
    assert may_begin(pace, 0.1, load(7, num_prefilling=7))
    assert not may_begin(pace, 0.2, load(7, num_waiting=1)), "there is no room for more"


def test_beside_others_there_is_one_line_until_they_are_gone_a_while() -> None:
    pace = LinePace()
    assert not may_begin(pace, 5.0, load(1, num_prefilling=1))
    assert may_begin(pace, 5.1, load(1))
    pace.num_lines = MAX_BESIDE
    assert not may_begin(pace, 5.2, load(1 + MAX_BESIDE))
    assert not may_begin(pace, 5.3, load(MAX_BESIDE)), "another one may come soon"
    assert pace.quiet_at() == 5.2 + QUIET_S
    assert may_begin(pace, pace.quiet_at(), load(MAX_BESIDE))


def test_the_gate_lets_lines_in_by_turn_and_forgets_those_that_are_cancelled() -> None:
    async def scenario() -> None:
        seen: RequestLoad | None = None
        gate = LineGate(lambda: seen)
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
            seen = load(1)
            async with asyncio.timeout(20 * QUIET_S):
                await asyncio.sleep(QUIET_S / 2)
                assert begun == ["b", "c"]
                await asyncio.sleep(QUIET_S)
            assert begun == ["b", "c", "d"], "nobody else asked"
        await asyncio.wait(tasks)

    asyncio.run(scenario())
