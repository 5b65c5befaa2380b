"""Ordinary clients that stream over HTTP, each request over a connection of its own, and compare tokens."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from random import Random
from typing import Any, Final

import aiohttp

from bench.chaos.clients import Tally

NUM_REQUESTS: Final = 16
WITHIN_S: Final = 590.0
RETRY_S: Final = 0.5
RETRIED_STATUSES: Final = frozenset({429, 503})
_DATA: Final = b"data: "
_DONE: Final = b"data: [DONE]"


def make_bodies(seed: int) -> list[dict[str, Any]]:
    """Streams of one and two sequences, greedy and seeded, by prompts of 8 to 500 tokens."""
    rng = Random(seed)
    return [
        {
            "prompt": rng.choices(range(4, 500), k=rng.choice((8, 60, 500))),
            "max_tokens": rng.choice((40, 120)),
            "temperature": rng.choice((0.0, 0.9)),
            "seed": number,
            "n": 1 + number % 2,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }
        for number in range(NUM_REQUESTS)
    ]


class HttpClients:
    """Ask all routers; each stream is compared with what the same request gave before."""

    def __init__(self, addresses: Sequence[str], key: str, seed: int) -> None:
        self._addresses = addresses
        self._headers = {"authorization": f"Bearer {key}"}
        self._bodies = make_bodies(seed)
        self._expected: dict[int, dict[int, list[int]]] = {}
        self._rng = Random(seed)
        self.tally = Tally()

    async def learn(self) -> None:
        """Ask everything once, with nothing disturbed."""
        for number in range(len(self._bodies)):
            self._expected[number] = await self._follow(number, Tally())

    async def ask_on(self, is_over: asyncio.Event) -> None:
        """Be one client: ask one request after the other until it is over."""
        while not is_over.is_set():
            await self._ask(self._rng.randrange(len(self._bodies)))

    async def _ask(self, number: int) -> None:
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(WITHIN_S):
                tokens = await self._follow(number, self.tally)
        except (TimeoutError, aiohttp.ClientError, ValueError) as error:
            self.tally.lost.append(f"HTTP request {number}: {error!r}")
            return
        self.tally.longest_s = max(self.tally.longest_s, time.monotonic() - began_s)
        self.tally.num_tokens += sum(map(len, tokens.values()))
        if tokens == self._expected[number]:
            self.tally.num_right += 1
        else:
            self.tally.wrong.append(f"HTTP request {number}: {tokens} instead of {self._expected[number]}")

    async def _follow(self, number: int, tally: Tally) -> dict[int, list[int]]:
        """Read one answer; one that is refused before it begins is asked for again.

        Raises:
            aiohttp.ClientError: a stream that had begun was cut.
            ValueError: it was refused, or its stream was cut.
        """
        while True:
            address = self._rng.choice(self._addresses)
            refusal = ""
            try:
                async with (
                    aiohttp.ClientSession(headers=self._headers) as session,
                    session.post(f"http://{address}/v1/completions", json=self._bodies[number]) as answer,
                ):
                    if answer.status == 200:
                        return await _tokens_of(answer, tally)
                    refusal = await answer.text()
                    if answer.status not in RETRIED_STATUSES:
                        raise ValueError(f"status is {answer.status}: {refusal}")
            except (aiohttp.ClientConnectorError, aiohttp.ServerDisconnectedError) as error:
                refusal = repr(error)
            tally.num_refused += 1
            tally.refusals[refusal] += 1
            await asyncio.sleep(RETRY_S)


async def _tokens_of(answer: aiohttp.ClientResponse, tally: Tally) -> dict[int, list[int]]:
    """Token ids of a stream by sequence."""
    tokens: dict[int, list[int]] = {}
    last_s = None
    async for line in answer.content:
        if line.startswith(_DONE):
            return tokens
        if not line.startswith(_DATA):
            continue
        now_s = time.monotonic()
        tally.longest_pause_s = max(tally.longest_pause_s, now_s - (last_s or now_s))
        last_s = now_s
        chunk = json.loads(line[len(_DATA) :])
        if "error" in chunk:
            raise ValueError(f"the stream ends with {chunk['error']}")
        for choice in chunk["choices"]:
            tokens.setdefault(choice["index"], []).extend(choice.get("token_ids") or ())
    raise ValueError("the stream ended without its end")
