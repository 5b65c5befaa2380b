"""Clients that ask one router again and again, and compare its answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc

from baton_proto.v1.baton_pb2_grpc import BatonStub
from tests.e2e.calls import answer, ask, draw_prompt, greedy
from tests.integration.scripted_worker import until

PARAMS = greedy(6)
PROMPTS = [draw_prompt(70, seed=number % 4) + draw_prompt(40, seed=number) for number in range(24)]
"""Four prefixes of two blocks, with six ends each."""


class Clients:
    """Ask one router, several at a time, one question after the other; keep count of how it ended."""

    def __init__(self, address: str, expected: Sequence[list[int]]) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._expected = expected
        self._is_over = False
        self.num_right = 0
        self.wrong: list[int] = []
        self.errors: Counter[tuple[str, str]] = Counter()

    @asynccontextmanager
    async def asking(self, num_clients: int) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._ask_on(first)) for first in range(num_clients)]
        try:
            yield
        finally:
            self._is_over = True
            await asyncio.gather(*tasks)
            await self._channel.close()

    async def more_answers(self, num_more: int) -> None:
        """Wait until so many more came back right."""
        goal = self.num_right + num_more
        await until(lambda: self.num_right >= goal)

    async def _ask_on(self, number: int) -> None:
        stub = BatonStub(self._channel)
        while not self._is_over:
            number = (number + 5) % len(PROMPTS)
            try:
                events = [event async for event in stub.Generate(ask(PROMPTS[number], PARAMS), timeout=20.0)]
            except grpc.aio.AioRpcError as error:
                self.errors[error.code().name, error.details() or ""] += 1
                await asyncio.sleep(0.1)
                continue
            if [output.token_ids for output in answer(events)[0]] == [self._expected[number]]:
                self.num_right += 1
            else:
                self.wrong.append(number)
