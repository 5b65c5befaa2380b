"""Places go to tenants in turns, and no tenant has all of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest

from baton_core.errors import ErrorCode, RequestError
from baton_router.text.tenant_turns import TenantTurns


async def _settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def test_a_tenant_leaves_a_place_to_the_others_and_their_turns_come_between_its_own() -> None:
    turns = TenantTurns(3)
    backlog = [asyncio.create_task(turns.take("b")) for _ in range(9)]
    await _settle()
    assert [task.done() for task in backlog].count(True) == 2
    async with asyncio.timeout(20):
        await turns.take("a")  # at once
        waiting = asyncio.create_task(turns.take("a"))
        await _settle()
        assert not waiting.done()
        turns.release("b")
        turns.release("b")
        await waiting  # after one turn of the other tenant
    assert [task.done() for task in backlog].count(True) == 3
    for task in backlog:
        task.cancel()


async def test_of_more_than_may_wait_the_newest_of_the_tenant_with_the_most_is_refused() -> None:
    turns = TenantTurns(1, max_waiting=3)
    await turns.take("c")
    many = [asyncio.create_task(turns.take("b")) for _ in range(4)]
    await _settle()
    assert [task.done() for task in many] == [False, False, False, True]
    with pytest.raises(RequestError, match="3 texts wait for their turn; allowed: 3") as caught:
        await many[3]
    assert caught.value.code is ErrorCode.OVERLOADED
    few = [asyncio.create_task(turns.take("a")) for _ in range(2)]
    await _settle()
    assert [task.done() for task in (*many[:3], *few)] == [False, False, True, False, True]
    for task in (many[2], few[1]):  # of two tenants that have as many, it is the newcomer's
        assert isinstance(task.exception(), RequestError)
    turns.close()
    for task in (*many[:2], few[0]):
        with pytest.raises(RequestError, match="the router shuts down") as caught:
            await task
        assert caught.value.code is ErrorCode.UNAVAILABLE


@pytest.mark.parametrize("seed", range(20))
async def test_places_are_neither_lost_nor_given_twice_and_backlogs_of_others_cost_one_turn(
    seed: int,
) -> None:
    random = Random(seed)
    num_places = random.randint(1, 4)
    tenants = "abc"
    turns = TenantTurns(num_places, max_waiting=random.randint(4, 40))
    waiting: list[tuple[str, asyncio.Task[None]]] = []
    held = Counter[str]()
    for _ in range(300):
        match random.randrange(3):
            case 0:
                tenant = random.choice(tenants)
                waiting.append((tenant, asyncio.create_task(turns.take(tenant))))
            case 1 if waiting:
                random.choice(waiting)[1].cancel()
            case 2 if held.total():
                tenant = random.choice(list(held.elements()))
                held[tenant] -= 1
                turns.release(tenant)
        if random.random() < 0.5:
            await _settle()
            for tenant, task in waiting:
                if task.done() and not task.cancelled() and task.exception() is None:
                    held[tenant] += 1
            waiting = [one for one in waiting if not one[1].done()]
            assert held.total() <= num_places
            assert max(held.values(), default=0) <= max(1, num_places - 1)
            allowed = [one for one, _ in waiting if held[one] < max(1, num_places - 1)]
            assert held.total() == num_places or not allowed
    for _, task in waiting:
        task.cancel()


async def test_a_place_that_comes_as_its_caller_leaves_goes_to_the_next() -> None:
    turns = TenantTurns(1)
    await turns.take("a")
    leaving, next_ = asyncio.create_task(turns.take("b")), asyncio.create_task(turns.take("c"))
    await _settle()
    turns.release("a")
    leaving.cancel()
    async with asyncio.timeout(20):
        await next_
    assert leaving.cancelled()
