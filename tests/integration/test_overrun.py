"""Workers compute at most two steps after a stop string has ended a sequence."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from baton import SamplingParams
from baton_core.requests.attempt_names import name_at_client
from baton_core.sessions.router_messages import FirstToken, TokenBatch
from baton_core.sessions.worker_info import Role
from baton_proto.v1 import baton_pb2 as pb
from baton_router.core.flow.token_stream import TokenStream
from tests.e2e.calls import answer, draw_prompt
from tests.integration.worker_cluster import Cluster, Gate, Said, routing, working

MAX_TOKENS = 24
NUM_ROUND_TRIPS = 3
"""To the router, while a decode step lasts, as one of a large model; those of the model here are shorter."""
WITHIN_S = 30.0
PROMPT = draw_prompt(48, seed=3)
PARAMS = {"n": 2, "seed": 5, "temperature": 1.0, "max_tokens": MAX_TOKENS, "ignore_eos": True}


class SlowGate(Gate):
    """Holds each step for some round trips between the test's loop and a router on it."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._cluster = cluster

    def pass_through(self) -> None:
        asyncio.run_coroutine_threadsafe(self._go_to_and_fro(), self._loop).result(WITHIN_S)

    async def _go_to_and_fro(self) -> None:
        for _ in range(NUM_ROUND_TRIPS):
            await self._cluster.stub.GetModelInfo(pb.GetModelInfoRequest())


def num_said(said: Said, request_id: str, index: int) -> int:
    """Tokens of a sequence that workers have sent to the router."""
    batches = [message for message in said.messages if isinstance(message, FirstToken | TokenBatch)]
    outputs = [output for batch in batches for output in batch.outputs]
    return sum(
        len(output.token_ids)
        for output in outputs
        if (name_at_client(output.request_id), output.index) == (request_id, index)
    )


@pytest.mark.parametrize("roles", [(Role.MIXED,), (Role.PREFILL, Role.DECODE)], ids=["alone", "split"])
async def test_a_stop_string_costs_at_most_two_steps(
    roles: tuple[Role, ...], said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams: list[TokenStream] = []
    start = TokenStream.__init__

    def keep(stream: TokenStream, *args: object) -> None:
        start(stream, *args)  # type: ignore[arg-type]
        streams.append(stream)

    monkeypatch.setattr(TokenStream, "__init__", keep)
    async with AsyncExitStack() as stack:
        split = "always" if len(roles) > 1 else "never"
        cluster = await stack.enter_async_context(routing(said, split=split))
        for role in roles:
            worker = working(role, cluster.port, gate=SlowGate(cluster), async_scheduling=len(roles) == 1)
            await stack.enter_async_context(worker)
        await cluster.wait_for_idle(*roles)
        free, _ = answer([event async for event in cluster.ask("free", PROMPT, SamplingParams(**PARAMS))])
        middle = free[0].text[len(free[0].text) // 3 :][:6]
        assert middle not in free[1].text, "the other sequence has to go on"
        params = SamplingParams(**PARAMS, stop=(middle,))
        shown, end = answer([event async for event in cluster.ask("stopped", PROMPT, params)])
        assert [part.stop_reason for part in shown] == [middle, None]
        assert shown[0].text == free[0].text[: free[0].text.index(middle)]
        num_wasted = num_said(said, "stopped", 0) - len(shown[0].token_ids)
        assert streams[-1].num_wasted_tokens == num_wasted <= 2
        assert end.usage.completion_tokens == len(shown[0].token_ids) + MAX_TOKENS
        await cluster.wait_for_idle(*roles)
