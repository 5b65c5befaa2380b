"""Many clients at once, of which a third go away: the others notice nothing, and nothing is left behind."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import grpc

from baton import LLM, CompletionOutput, SamplingParams
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from tests.e2e.calls import answer, ask, draw_prompt, greedy
from tests.e2e.processes import Cluster

NUM_REQUESTS = 64
NUM_CANCELLED = NUM_REQUESTS // 3
NUM_TOKENS = 24
WITHIN_S = 60.0

Request = tuple[list[int], SamplingParams]


class Moments:
    """Cancels calls. A moment is a number of tokens that all clients together have received."""

    def __init__(self, moments: dict[int, int]) -> None:
        self._moments = moments
        """By the number of the call."""
        self._num_tokens = 0
        self._calls: dict[int, Any] = {}

    def start(self, number: int, call: Any) -> None:
        self._calls[number] = call
        self._cancel_due()

    def pass_by(self, num_tokens: int) -> None:
        self._num_tokens += num_tokens
        self._cancel_due()

    def _cancel_due(self) -> None:
        for number in [
            n for n in self._calls if self._moments.get(n, self._num_tokens + 1) <= self._num_tokens
        ]:
            self._calls.pop(number).cancel()


def test_cancelled_requests_leave_the_others_and_the_workers_as_they_were(cluster: Cluster, llm: LLM) -> None:
    random = Random(7)
    requests = draw_requests(random)
    cancelled = random.sample(range(NUM_REQUESTS), NUM_CANCELLED)
    moments = {number: random.randrange(NUM_TOKENS * NUM_REQUESTS // 2) for number in cancelled}
    answers = asyncio.run(ask_all(cluster.address, requests, Moments(moments)))
    prompts, params = zip(*requests, strict=True)
    expected = llm.generate(prompts, params, use_tqdm=False)
    survivors = [number for number in range(NUM_REQUESTS) if answers[number] is not None]
    for number in survivors:
        assert answers[number] == expected[number].outputs, f"request {number}"
    assert set(range(NUM_REQUESTS)) - set(survivors) <= set(cancelled)
    assert len(survivors) < NUM_REQUESTS - NUM_CANCELLED // 2, "most were over before their moment"
    cluster.wait_until_idle()
    outputs, _ = answer(cluster.stub.Generate(ask(*requests[cancelled[0]])))
    assert outputs == expected[cancelled[0]].outputs


def draw_requests(random: Random) -> list[Request]:
    """Prompts of 2 to 400 tokens, half of them with a prefix in common; a quarter draws two sequences."""
    shared = draw_prompt(100, seed=1000)
    requests = []
    for number in range(NUM_REQUESTS):
        own = draw_prompt(random.randrange(2, 300), seed=1001 + number)
        prompt = shared + own if number % 2 else own
        drawn = SamplingParams(n=2, seed=number, temperature=0.9, max_tokens=NUM_TOKENS, ignore_eos=True)
        requests.append((prompt, drawn if number % 4 == 3 else greedy(NUM_TOKENS)))
    return requests


async def ask_all(
    address: str, requests: list[Request], moments: Moments
) -> list[tuple[CompletionOutput, ...] | None]:
    """Send all requests at once; None for those that were cancelled."""
    async with asyncio.timeout(WITHIN_S), grpc.aio.insecure_channel(address) as channel:
        stub = BatonStub(channel)
        asked = [
            ask_one(number, stub.Generate(ask(*request)), moments) for number, request in enumerate(requests)
        ]
        return await asyncio.gather(*asked)


async def ask_one(number: int, call: Any, moments: Moments) -> tuple[CompletionOutput, ...] | None:
    events: list[pb.GenerateEvent] = []
    moments.start(number, call)
    try:
        async for event in call:
            events.append(event)
            moments.pass_by(len(event.tokens.token_ids))
    except asyncio.CancelledError:
        if not call.cancelled():
            raise
        return None
    outputs, _ = answer(events)
    return outputs
