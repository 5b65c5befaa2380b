"""Clients that follow streams to their ends across the deaths of routers, and compare them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

import grpc

from baton import SamplingParams, StructuredOutputsParams
from baton.executors.request_encoder import encode_params
from baton.executors.resuming_client import Received
from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from baton_service.router_access import RouterAccess

WITHOUT_KEY: Final = RouterAccess()
NUM_REQUESTS: Final = 64
PREFIXES: Final = 4
WITHIN_S: Final = 590.0
"""Seconds that a request may take, its client's reconnections included."""
KINDS: Final = (
    SamplingParams(temperature=0.0, max_tokens=160, ignore_eos=True),
    SamplingParams(temperature=0.9, seed=1, max_tokens=200, ignore_eos=True, top_p=0.95, min_p=0.01),
    SamplingParams(temperature=0.8, seed=2, max_tokens=120, n=2, repetition_penalty=1.2, ignore_eos=True),
    SamplingParams(temperature=0.8, seed=3, max_tokens=140, presence_penalty=0.5, frequency_penalty=0.3),
    SamplingParams(temperature=0.8, seed=4, max_tokens=100, logprobs=3, ignore_eos=True),
    SamplingParams(temperature=0.9, seed=5, max_tokens=200, stop=["the", ". "], min_tokens=60),
    SamplingParams(
        temperature=0.9,
        seed=6,
        max_tokens=120,
        structured_outputs=StructuredOutputsParams(regex="[a-z ]{50,90}"),
    ),
    SamplingParams(temperature=0.0, max_tokens=30, logprobs=0, bad_words=["the"], logit_bias={40: 2.0}),
)
"""Greedy, seeded, penalties, several sequences, log-probabilities, stop strings, structured outputs, bans."""


def make_requests(num_requests: int, seed: int) -> list[pb.GenerateRequest]:
    """Prompts of 8 to 1,200 tokens, many with a common prefix, each with every kind in turn."""
    rng = Random(seed)
    prefixes = [rng.choices(range(4, 500), k=256) for _ in range(PREFIXES)]
    requests = []
    for number in range(num_requests):
        own = rng.choices(range(4, 500), k=rng.choice([8, 40, 100, 300, 900]))
        prompt = (rng.choice(prefixes) if rng.random() < 0.6 else []) + own
        params = encode_params(KINDS[number % len(KINDS)].frozen())
        requests.append(pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt), sampling_params=params))
    return requests


@dataclass(slots=True)
class Stream:
    """One sequence of an answer."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[tuple[tuple[int, ...], tuple[float, ...]]] = field(default_factory=list)
    finish_reason: str = ""
    stop: str | int | None = None


class Answer:
    """The events that a client has of one request."""

    def __init__(self, n: int) -> None:
        self.sequences = [Stream() for _ in range(n)]
        self.num_ends = 0

    def add(self, event: pb.GenerateEvent) -> None:
        if event.HasField("finished"):
            self.num_ends += 1
            return
        tokens = event.tokens
        sequence = self.sequences[tokens.index]
        if sequence.finish_reason:
            raise ValueError(f"sequence {tokens.index} goes on after its end")
        sequence.token_ids.extend(tokens.token_ids)
        sequence.text += tokens.text
        sequence.logprobs += [(tuple(one.token_ids), tuple(one.logprobs)) for one in tokens.logprobs]
        sequence.finish_reason = tokens.finish_reason
        which = tokens.WhichOneof("stop_reason")
        sequence.stop = getattr(tokens, which) if which else None


@dataclass(slots=True)
class Tally:
    """Counts of the ends of requests."""

    num_right: int = 0
    num_tokens: int = 0
    num_reconnected: int = 0
    """Streams that went on at another router, or at the same one after it was started again."""
    num_refused: int = 0
    """Attempts that a router refused before anything was streamed; they were made again."""
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0
    longest_pause_s: float = 0.0
    """The longest time between two events of one stream."""


class Clients:
    """Ask requests at all routers, and compare each stream with `expected`.

    Args:
        start_number: of a router by its place among `addresses`: how often it was started, or None while it
            is down.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        requests: Sequence[pb.GenerateRequest],
        start_number: Callable[[int], int | None],
        access: RouterAccess = WITHOUT_KEY,
    ) -> None:
        options = (("grpc.max_reconnect_backoff_ms", 500), ("grpc.initial_reconnect_backoff_ms", 100))
        self._channels = [access.open_async_channel(address, options) for address in addresses]
        self._metadata = access.metadata
        self._requests = requests
        self._start_number = start_number
        self._rng = Random(1)
        self.expected: dict[int, list[Stream]] = {}
        self.tally = Tally()

    async def learn(self) -> None:
        """Ask everything once, with nothing disturbed: what streams are compared with from now on."""
        slots = asyncio.Semaphore(32)

        async def one(number: int) -> None:
            async with slots:
                self.expected[number] = (await self._follow(number, Tally())).sequences

        await asyncio.gather(*(one(number) for number in range(len(self._requests))))

    async def ask_on(self, is_over: asyncio.Event) -> None:
        """Be one client: ask one request after the other until it is over."""
        while not is_over.is_set():
            await self.ask(self._rng.randrange(len(self._requests)))

    async def ask(self, number: int) -> None:
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(WITHIN_S):
                answer = await self._follow(number, self.tally)
        except TimeoutError:
            self.tally.lost.append(f"request {number}: not at its end within {WITHIN_S:g} s")
            return
        except (grpc.aio.AioRpcError, ValueError) as error:
            details = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
            self.tally.lost.append(f"request {number}: {details}")
            return
        self.tally.longest_s = max(self.tally.longest_s, time.monotonic() - began_s)
        self.tally.num_tokens += sum(len(sequence.token_ids) for sequence in answer.sequences)
        if answer.sequences == self.expected[number] and answer.num_ends == 1:
            self.tally.num_right += 1
        else:
            had = f"{answer.num_ends} ends, {answer.sequences}"
            self.tally.wrong.append(f"request {number}: {had} instead of {self.expected[number]}")

    async def _follow(self, number: int, tally: Tally) -> Answer:
        """Read one answer, at whichever routers it takes."""
        request = self._requests[number]
        n = max(1, request.sampling_params.n)
        answer, received = Answer(n), Received(n)
        by_tokens = self._rng.random() < 0.5
        place = self._rng.randrange(len(self._channels))
        has_begun = False
        while True:
            started = self._start_number(place)
            if started is not None:
                last_s = None
                try:
                    rest = rest_of(received, request, by_tokens)
                    async for event in BatonStub(self._channels[place]).Generate(
                        rest, metadata=self._metadata
                    ):
                        now_s = time.monotonic()
                        tally.longest_pause_s = max(tally.longest_pause_s, now_s - (last_s or now_s))
                        last_s, has_begun = now_s, True
                        received.add(event)
                        answer.add(event)
                    return answer
                except grpc.aio.AioRpcError as error:
                    if received.is_over:
                        return answer
                    is_refusal = (error.details() or "").startswith(("no ", "failed to connect")) or (
                        error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and not has_begun
                    )
                    if self._start_number(place) != started:
                        tally.num_reconnected += has_begun
                    elif is_refusal:
                        tally.num_refused += 1
                        tally.refusals[error.details() or ""] += 1
                    else:
                        raise
            place = (place + 1) % len(self._channels)
            await asyncio.sleep(0.2)

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()


def rest_of(received: Received, request: pb.GenerateRequest, by_tokens: bool) -> pb.GenerateRequest:
    """Return the rest of `request`, which names the tokens received, or only their number."""
    rest = received.rest_of(request)
    if rest.resume_token and not by_tokens:
        rest.num_received_tokens.extend(len(sequence.ids) for sequence in rest.received_token_ids)
        del rest.received_token_ids[:]
    return rest
