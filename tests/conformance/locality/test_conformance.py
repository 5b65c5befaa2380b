"""A router knows the same of its workers' caches whichever way it hears of them."""

from __future__ import annotations

import asyncio
import random
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import pytest

from tests.conformance.locality.cluster import LocalityCluster, converged, locality_cluster
from tests.integration.scripted_worker import until
from tests.redis_server import needs_redis

pytestmark = pytest.mark.timeout(90)
NUMBERS = range(64)
Entered = AbstractAsyncContextManager[LocalityCluster]


@pytest.fixture(params=["sessions", pytest.param("redis", marks=needs_redis)])
def entered(request: pytest.FixtureRequest, tmp_path: Path) -> Entered:
    """A fresh cluster, which begins when it is entered."""
    return locality_cluster(request.param, tmp_path)


async def test_a_router_knows_what_was_stored_and_what_was_removed(entered: Entered) -> None:
    async with entered as cluster:
        router, worker = await cluster.router("r1"), await cluster.worker("w1")
        worker.store(1, 2, 3)
        await converged(router, worker, numbers=NUMBERS)
        worker.remove(2)
        worker.store(4)
        await converged(router, worker, numbers=NUMBERS)
        assert router.holds(worker, NUMBERS) == {1, 3, 4}


async def test_a_cache_that_was_cleared_is_known_to_be_empty(entered: Entered) -> None:
    async with entered as cluster:
        router, worker = await cluster.router("r1"), await cluster.worker("w1")
        worker.store(1, 2, 3)
        await converged(router, worker, numbers=NUMBERS)
        worker.clear()
        await converged(router, worker, numbers=NUMBERS)
        worker.store(2)
        await converged(router, worker, numbers=NUMBERS)
        assert router.holds(worker, NUMBERS) == {2}


async def test_what_a_worker_had_before_its_restart_is_forgotten(entered: Entered) -> None:
    async with entered as cluster:
        router = await cluster.router("r1")
        async with AsyncExitStack() as life:
            worker = await cluster.worker("w1", epoch=1, stack=life)
            worker.store(1, 2)
            await converged(router, worker, numbers=NUMBERS)
        again = await cluster.worker("w1", epoch=2)
        again.store(3)
        await converged(router, again, numbers=NUMBERS)
        assert router.holds(again, NUMBERS) == {3}


async def test_a_router_that_comes_late_learns_everything(entered: Entered) -> None:
    async with entered as cluster:
        first, late = await cluster.router("r1"), await cluster.router("r2", is_cut_off=True)
        worker = await cluster.worker("w1")
        worker.store(*NUMBERS[:40])
        worker.remove(7)
        await converged(first, worker, numbers=NUMBERS)
        assert not late.workers
        cluster.mend()
        await converged(late, worker, numbers=NUMBERS)
        worker.store(50)
        for router in (first, late):
            await converged(router, worker, numbers=NUMBERS)


async def test_changes_that_a_router_misses_are_made_up_for(entered: Entered) -> None:
    async with entered as cluster:
        router, worker = await cluster.router("r1"), await cluster.worker("w1")
        worker.store(1, 2, 3)
        await converged(router, worker, numbers=NUMBERS)
        cluster.cut()
        await asyncio.sleep(0.3)  # a session that breaks for longer than it may is over
        worker.remove(1)
        worker.store(4)
        if cluster.redis is not None:
            await asyncio.sleep(0.1)
            await cluster.redis.ask("XTRIM", "test:changes", "MAXLEN", 0)
        cluster.mend()
        await converged(router, worker, numbers=NUMBERS)
        worker.store(5)
        await converged(router, worker, numbers=NUMBERS)


async def test_workers_are_told_apart_and_leave_nothing_behind(entered: Entered) -> None:
    async with entered as cluster:
        router, one = await cluster.router("r1"), await cluster.worker("w1")
        async with AsyncExitStack() as life:
            other = await cluster.worker("w2", stack=life)
            one.store(1, 2)
            other.store(2, 3)
            await converged(router, one, other, numbers=NUMBERS)
        await until(lambda: router.workers == {"w1"})
        await converged(router, one, numbers=NUMBERS)
        assert not router.holds(other, NUMBERS)


async def test_ten_thousand_changes_at_once_arrive(entered: Entered) -> None:
    async with entered as cluster:
        router, worker = await cluster.router("r1"), await cluster.worker("w1")
        worker.store(0)
        await converged(router, worker, numbers=NUMBERS)
        for first in range(0, 10_000, 40):
            worker.store(*range(first + 1, first + 41))
            worker.remove(first + 5)
        await converged(router, worker, numbers=range(0, 10_001, 97))


@pytest.mark.parametrize("seed", range(2))
async def test_routers_end_up_with_the_truth_after_random_changes(entered: Entered, seed: int) -> None:
    async with entered as cluster:
        draw = random.Random(seed)
        routers = [await cluster.router(name) for name in ("r1", "r2")]
        workers = [await cluster.worker(name) for name in ("w1", "w2", "w3")]
        for _ in range(200):
            worker = draw.choice(workers)
            match draw.choices(["store", "remove", "clear", "pause", "cut"], [60, 60, 2, 20, 2])[0]:
                case "store":
                    worker.store(*draw.sample([*set(NUMBERS) - worker.blocks] or [0], k=1))
                case "remove" if worker.blocks:
                    worker.remove(draw.choice(sorted(worker.blocks)))
                case "clear":
                    worker.clear()
                case "pause":
                    await asyncio.sleep(draw.uniform(0.0, 0.01))
                case "cut":
                    cluster.cut()
                    cluster.mend()
        for router in routers:
            await converged(router, *workers, numbers=NUMBERS)
