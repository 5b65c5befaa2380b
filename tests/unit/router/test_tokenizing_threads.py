from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest

from baton_core.errors import ErrorCode, InvalidRequestError, RequestError
from baton_router.text.tokenizing_threads import Lane, TokenizingThreads


async def test_more_than_may_wait_are_refused_and_a_cancelled_one_counts_until_it_is_done() -> None:
    threads, gate = TokenizingThreads(max_waiting=1), threading.Event()
    running = [asyncio.create_task(threads.run("", Lane.SHORT, gate.wait, 20.0)) for _ in range(2)]
    await asyncio.sleep(0)
    running[0].cancel()
    waiting = asyncio.create_task(threads.run("", Lane.SHORT, str, 1))
    await asyncio.sleep(0)
    with pytest.raises(RequestError, match="1 texts wait for their turn; allowed: 1") as caught:
        await threads.run("", Lane.SHORT, str, 1)
    assert caught.value.code is ErrorCode.OVERLOADED
    assert not waiting.done()
    gate.set()
    assert await running[1]
    assert await waiting == "1"
    threads.close()


@pytest.mark.parametrize(
    ("slow", "tenant", "lane"),
    [(Lane.LONG, "b", Lane.SHORT), (Lane.GRAMMAR, "b", Lane.SHORT), *((lane, "a", lane) for lane in Lane)],
)
async def test_slow_work_holds_up_no_short_prompt_of_its_tenant_and_nothing_of_another(
    slow: Lane, tenant: str, lane: Lane
) -> None:
    threads, gate = TokenizingThreads(max_waiting=20), threading.Event()
    running = [asyncio.create_task(threads.run("b", slow, gate.wait, 20.0)) for _ in range(20)]
    await asyncio.sleep(0)
    for _ in range(3):
        assert await threads.run(tenant, lane, str, 1) == "1"
    assert not any(task.done() for task in running)
    gate.set()
    assert all(await asyncio.gather(*running))
    threads.close()


async def test_work_that_waits_at_the_end_is_refused() -> None:
    threads, gate = TokenizingThreads(), threading.Event()
    tasks = [asyncio.create_task(threads.run("", Lane.LONG, gate.wait, 20.0)) for _ in range(3)]
    await asyncio.sleep(0)
    threading.Timer(0.01, gate.set).start()
    threads.close()
    assert await tasks[0]
    assert await tasks[1]
    with pytest.raises(RequestError, match="the router shuts down"):
        await tasks[2]


async def test_what_a_function_raises_is_raised_and_makes_room() -> None:
    threads = TokenizingThreads(max_waiting=0)
    for _ in range(3):
        with pytest.raises(ValueError, match="x"):
            await threads.run("", Lane.SHORT, int, "x")
    threads.close()


async def test_an_error_lets_go_of_what_its_function_was_given(request: pytest.FixtureRequest) -> None:
    class Body:
        pass

    def refuse(body: Body) -> None:
        raise InvalidRequestError("body", 1, "none")

    request.addfinalizer(gc.enable)
    gc.disable()
    threads, body = TokenizingThreads(), Body()
    gone = weakref.ref(body)
    with pytest.raises(InvalidRequestError):
        await threads.run("", Lane.SHORT, refuse, body)
    del body
    async with asyncio.timeout(20):
        while gone() is not None:  # noqa: ASYNC110 (the thread drops it a moment later)
            await asyncio.sleep(0.01)
    threads.close()
