from __future__ import annotations

import asyncio
import threading

import pytest

from baton_core.errors import ErrorCode, RequestError
from baton_router.tokenizing_threads import TokenizingThreads


def test_more_than_may_wait_are_refused_and_a_cancelled_one_counts_until_it_is_done() -> None:
    async def scenario() -> None:
        threads, gate = TokenizingThreads(max_waiting=2), threading.Event()
        running = [asyncio.create_task(threads.run(gate.wait, 20.0)) for _ in range(2)]
        await asyncio.sleep(0)
        running[0].cancel()
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="2 prompts wait to be tokenized; allowed: 2") as caught:
            await threads.run(str, 1)
        assert caught.value.code is ErrorCode.OVERLOADED
        gate.set()
        assert await running[1]
        while True:  # the cancelled one ends when its thread does
            try:
                assert await threads.run(str, 1) == "1"
                break
            except RequestError:
                await asyncio.sleep(0.001)
        threads.close()

    asyncio.run(scenario())


def test_what_a_function_raises_is_raised_and_makes_room() -> None:
    async def scenario() -> None:
        threads = TokenizingThreads(max_waiting=1)
        for _ in range(3):
            with pytest.raises(ValueError, match="x"):
                await threads.run(int, "x")
        threads.close()

    asyncio.run(scenario())
