"""A worker that one router refuses goes on serving the other, and joins when it may."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from baton_core.sessions.worker_info import Role
from tests.e2e.calls import answer, draw_prompt, greedy
from tests.integration.scripted_worker import ScriptedWorker, until
from tests.integration.worker_cluster import Cluster, Said, made, routing

NUM_TOKENS = 5


async def tokens_of(cluster: Cluster, request_id: str) -> list[int]:
    call = cluster.ask(request_id, draw_prompt(40, seed=1), greedy(NUM_TOKENS))
    outputs, _ = answer([event async for event in call])
    return list(outputs[0].token_ids)


async def test_a_stray_worker_at_one_router_costs_the_other_routers_worker_nothing(said: Said) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(routing(said, split="never"))
        second = await stack.enter_async_context(routing(said, split="never"))
        made_here = made(Role.MIXED, first.port, also=(second.port,), name="w")
        worker, _ = await stack.enter_async_context(made_here)
        async with ScriptedWorker("stray").joined(second.port):
            running = asyncio.create_task(worker.run())
            await until(lambda: worker.metrics.num_sessions == 1 and bool(worker.metrics.refusals()))
            assert worker.metrics.problem == ""
            assert 'baton_session_refusals{worker="w"} 1' in worker.metrics.exposition().text().decode()
            expected = await tokens_of(first, "a")
            assert len(expected) == NUM_TOKENS
        await until(lambda: worker.metrics.num_sessions == 2)
        assert worker.metrics.refusals() == []
        assert await tokens_of(second, "b") == expected
        assert not running.done()
        running.cancel()
        await asyncio.wait({running})
