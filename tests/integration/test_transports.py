"""Prefill and decode workers whose blocks travel by TCP: the tokens are those of one worker alone."""

from __future__ import annotations

import pytest

from baton import LLM
from baton_core.sessions.router_messages import Transferred
from baton_core.sessions.worker_info import Role
from baton_kv.transport import Transport
from tests.conformance.kv.pairs import needs_nixl
from tests.e2e.calls import answer, draw_prompt, greedy
from tests.integration.router_cluster import MODEL
from tests.integration.worker_cluster import Said, made, refusal_of, routing, working


@pytest.fixture(scope="module")
def llm() -> LLM:
    """Everything in this thread: the oracle."""
    return LLM(str(MODEL), dtype="float32")


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        (Transport.TCP, Transport.TCP),
        (Transport.AUTO, Transport.AUTO),
        pytest.param(Transport.NIXL, Transport.NIXL, marks=needs_nixl),
    ],
)
async def test_split_requests_get_the_tokens_of_one_worker(
    llm: LLM, said: Said, prefill: Transport, decode: Transport
) -> None:
    prompts = [draw_prompt(length, seed=length) for length in (33, 64, 150)]
    expected = [output.outputs for output in llm.generate(prompts, greedy(12), use_tqdm=False)]
    async with (
        routing(said) as cluster,
        working(Role.PREFILL, cluster.port, kv_transport=prefill),
        working(Role.DECODE, cluster.port, kv_transport=decode),
    ):
        await cluster.wait_for_idle("prefill", "decode")
        calls = [cluster.ask(f"{len(prompt)}", prompt, greedy(12)) for prompt in prompts]
        for prompt, call, outputs in zip(prompts, calls, expected, strict=True):
            assert answer([event async for event in call])[0] == outputs
            transferred = said.find(Transferred, f"{len(prompt)}")
            assert transferred.num_blocks == -(-len(prompt) // 32)
            assert transferred.num_recomputed_tokens == 0
        await cluster.wait_for_idle("prefill", "decode")


async def test_workers_without_a_common_transport_are_refused_by_the_router(said: Said) -> None:
    async with (
        routing(said) as cluster,
        working(Role.PREFILL, cluster.port, kv_transport=Transport.SHARED_MEMORY),
        made(Role.DECODE, cluster.port, kv_transport=Transport.TCP) as (worker, _),
    ):
        await cluster.wait_for_idle("prefill")
        refusal = await refusal_of(worker)
        assert "transport is 'tcp'; allowed: 'shared_memory', as in the workers" in refusal
