"""Several prefill, decode and mixed workers under one router: load, joining, leaving, refusal."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from baton import LLM, CompletionOutput
from baton_core.sessions.router_messages import FirstToken, TokenBatch
from baton_core.sessions.worker_info import Role
from tests.e2e.calls import answer, draw_prompt, greedy
from tests.integration.router_cluster import MODEL
from tests.integration.scripted_worker import until
from tests.integration.worker_cluster import Cluster, Said, made, refusal_of, routing, working

NUM_REQUESTS = 64
MAX_TOKENS = 16
PARAMS = greedy(MAX_TOKENS)
PROMPTS = [draw_prompt(1 + 37 * number % 200, seed=number) for number in range(NUM_REQUESTS)]
"""1 to 200 tokens."""


@pytest.fixture(scope="module")
def expected() -> list[list[CompletionOutput]]:
    """Return the tokens of each prompt when everything happens in one thread."""
    llm = LLM(str(MODEL), dtype="float32")
    return [output.outputs for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]


async def ask_for(cluster: Cluster, number: int) -> list[CompletionOutput]:
    call = cluster.ask(f"r{number}", PROMPTS[number], PARAMS)
    return answer([event async for event in call])[0]


@pytest.mark.exhaustive
async def test_64_concurrent_requests_over_five_workers_get_the_tokens_of_one(
    said: Said, expected: list[list[CompletionOutput]]
) -> None:
    names = {"p1": Role.PREFILL, "p2": Role.PREFILL, "d1": Role.DECODE, "d2": Role.DECODE, "m1": Role.MIXED}
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(routing(said, split="always"))
        for name, role in names.items():
            await stack.enter_async_context(working(role, cluster.port, name=name))
        await cluster.wait_for_idle(*names)
        outputs = await asyncio.gather(*(ask_for(cluster, number) for number in range(NUM_REQUESTS)))
        assert outputs == expected
        await cluster.wait_for_idle(*names)
    assert said.workers_that_said(FirstToken) >= {"p1", "p2"}, "one prefill worker did everything"
    assert said.workers_that_said(TokenBatch) >= {"d1", "d2"}, "one decode worker did everything"


async def test_workers_join_and_leave_under_load(said: Said, expected: list[list[CompletionOutput]]) -> None:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(routing(said))
        leaving = AsyncExitStack()
        for name, role in (("p1", Role.PREFILL), ("d1", Role.DECODE)):
            await leaving.enter_async_context(working(role, cluster.port, name=name))
        await cluster.wait_for_idle("p1", "d1")
        first = [asyncio.create_task(ask_for(cluster, number)) for number in range(24)]
        for name, role in (("p2", Role.PREFILL), ("d2", Role.DECODE)):
            await stack.enter_async_context(working(role, cluster.port, name=name))
        await until(lambda: {"p2", "d2"} <= said.loads.keys())
        second = [asyncio.create_task(ask_for(cluster, number)) for number in range(24, 48)]
        assert await asyncio.gather(*first, *second) == expected[:48]
        assert said.workers_that_said(TokenBatch) >= {"d1", "d2"}, "a worker that joined got nothing"

        third = [asyncio.create_task(ask_for(cluster, number)) for number in range(48, 56)]
        await leaving.aclose()
        assert await asyncio.gather(*third) == expected[48:56]
        await cluster.wait_for_idle("p2", "d2")
        fourth = await asyncio.gather(*(ask_for(cluster, number) for number in range(56, NUM_REQUESTS)))
        assert fourth == expected[56:]
        await cluster.wait_for_idle("p2", "d2")


async def test_a_worker_that_does_not_fit_is_refused_with_the_reason_and_disturbs_nobody(
    said: Said, expected: list[list[CompletionOutput]]
) -> None:
    async with (
        routing(said) as cluster,
        working(Role.PREFILL, cluster.port),
        working(Role.DECODE, cluster.port),
    ):
        await cluster.wait_for_idle("prefill", "decode")
        asked = [asyncio.create_task(ask_for(cluster, number)) for number in range(4)]
        async with made(Role.DECODE, cluster.port, name="other", block_size=16) as (worker, _):
            refusal = await refusal_of(worker)
            assert "block_size is 16; allowed: 32, as in the work" in refusal
        await asyncio.gather(*asked)
        assert [task.result() for task in asked] == expected[:4]
        await cluster.wait_for_idle("prefill", "decode")
