"""Bodies are bounded together: those being read by their bytes, large ones being decoded by their number."""

from __future__ import annotations

import asyncio

import pytest

from baton_core.errors import ErrorCode, RequestError
from baton_router.streams.memory import LARGE_BYTES, BodyMemory


def test_large_bodies_that_do_not_fit_together_are_refused_and_small_ones_are_not() -> None:
    memory = BodyMemory(max_read_bytes=1000)
    with memory.body() as first, memory.body() as second:
        first.add(LARGE_BYTES)
        first.add(600)
        with memory.body() as small:
            small.add(LARGE_BYTES)
        with pytest.raises(RequestError, match="bodies of 600 bytes are being read; allowed: 1000") as caught:
            second.add(LARGE_BYTES + 401)
        assert caught.value.code is ErrorCode.UNAVAILABLE
        first.release()
        second.add(300)
    with memory.body() as again:
        again.add(LARGE_BYTES + 1000)


async def test_large_bodies_are_decoded_in_turn_and_small_ones_at_once() -> None:
    memory, order = BodyMemory(max_decoded=1), list[int]()

    async def decode(number: int) -> None:
        with memory.body() as room:
            room.add(LARGE_BYTES + 1)
            await room.wait_to_decode("")
            order.append(number)
            await asyncio.sleep(0)
            order.append(number)
            room.release()
            await asyncio.sleep(0)

    with memory.body() as small:
        small.add(5)
        await small.wait_to_decode("")
        await asyncio.gather(*map(decode, range(3)))
    assert order == [0, 0, 1, 1, 2, 2]


async def test_a_turn_that_does_not_come_is_waited_for_so_long() -> None:
    memory = BodyMemory(max_decoded=1, wait_s=0.01)
    with memory.body() as first, memory.body() as second:
        first.add(LARGE_BYTES + 1)
        second.add(LARGE_BYTES + 1)
        await first.wait_to_decode("")
        with pytest.raises(RequestError, match="other large bodies have taken over") as caught:
            await second.wait_to_decode("")
        assert caught.value.code is ErrorCode.UNAVAILABLE
        first.release()
        await second.wait_to_decode("")


async def test_the_large_bodies_of_one_tenant_hold_up_no_other_tenant() -> None:
    memory = BodyMemory(max_read_bytes=2**20)

    async def decode(tenant: str) -> None:
        with memory.body() as room:
            room.add(LARGE_BYTES + 1)
            await room.wait_to_decode(tenant)
            if tenant == "b":
                await asyncio.Event().wait()

    held = [asyncio.create_task(decode("b")) for _ in range(9)]
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await decode("a")
    for task in held:
        task.cancel()
    await asyncio.gather(*held, return_exceptions=True)
    for _ in range(3):
        await decode("a")
