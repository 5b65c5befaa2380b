from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest

from baton_core.errors import ErrorCode, InvalidRequestError, RequestError
from baton_router.text.tokenizing_threads import TokenizingThreads


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


def test_an_error_lets_go_of_what_its_function_was_given() -> None:
    class Body:
        pass

    def refuse(body: Body) -> None:
        raise InvalidRequestError("body", 1, "none")

    async def scenario() -> None:
        threads, body = TokenizingThreads(), Body()
        gone = weakref.ref(body)
        with pytest.raises(InvalidRequestError):
            await threads.run(refuse, body)
        del body
        async with asyncio.timeout(20):
            while gone() is not None:  # noqa: ASYNC110 (the thread drops it a moment later)
                await asyncio.sleep(0.01)
        threads.close()

    gc.disable()
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()
