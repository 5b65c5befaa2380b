"""Loads of a replay, of a trace or random, and the answers to them; `load_generator` sends one.

The trace's format, and how it is made smaller, is the simulator's (baton_simulator.capacity.trace_formats).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise, takewhile
from pathlib import Path
from typing import TypeVar

import msgspec

from baton_bench.token_source import FIRST_TOKEN
from baton_bench.trace_prompts import prompt_tokens
from baton_simulator.capacity.trace import Scale, arrival_times
from baton_simulator.capacity.trace_formats import TraceRequest

VOCAB_SIZE = 4096
"""Size of the bundled model's vocabulary, whose folder the router serves."""
JITTER = 0.25
"""A prompt is at most this much shorter or longer than asked for, relative."""
S = TypeVar("S", bound=msgspec.Struct)


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """One request of an open-loop load."""

    at_s: float
    """Seconds from the start of the run to the arrival."""
    token_ids: list[int]
    num_tokens: int
    """Tokens to generate, whatever they are."""
    session_id: str = ""
    """The conversation that it belongs to; empty where the router is not to know."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an arrival; times count from when it was due, not from when it was sent."""

    sent_s: float
    """Seconds by which it was sent late."""
    times_s: list[float]
    """The times of the tokens at the client."""
    token_ids: list[int]
    cached_tokens: int = 0
    """Prompt tokens whose blocks existed where the prompt was computed."""
    transferred_bytes: int = 0
    prefill_worker: str = ""
    decode_worker: str = ""
    error: str = ""
    """Why it has no whole answer."""

    @property
    def ttft_s(self) -> float:
        return self.times_s[0]

    @property
    def e2e_s(self) -> float:
        return self.times_s[-1]

    @property
    def gap_s(self) -> float | None:
        """Between the first token and the second: where a hand-over shows; None without a second one."""
        return self.times_s[1] - self.times_s[0] if len(self.times_s) > 1 else None

    @property
    def intervals_s(self) -> list[float]:
        """Between the tokens from the second one on."""
        return [after - before for before, after in pairwise(self.times_s[1:])]

    @property
    def is_split(self) -> bool:
        return bool(self.decode_worker) and self.prefill_worker != self.decode_worker


class Load(msgspec.Struct, frozen=True, kw_only=True):
    arrivals: list[Arrival]


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a load."""

    answers: list[Answer]
    """The answers, in the order of the arrivals."""
    wall_s: float
    """Seconds from the start to the last answer's end."""
    cpu_s: float
    """CPU seconds that the load generator spent meanwhile."""


def write(path: Path, value: msgspec.Struct) -> None:
    path.write_bytes(msgspec.msgpack.encode(value))


def read(path: Path, kind: type[S]) -> S:
    return msgspec.msgpack.decode(path.read_bytes(), type=kind)


def random_load(*, rate: float, seconds: float, prompt_len: int, num_tokens: int, seed: str) -> Load:
    """Poisson arrivals, `rate` a second, at least two; `num_tokens` to generate each."""
    draws = random.Random(seed)
    count = max(2, round(rate * seconds))
    times = accumulate(draws.expovariate(rate) for _ in range(count))
    return Load(
        arrivals=[
            Arrival(
                at_s=at_s,
                token_ids=draws.choices(
                    range(FIRST_TOKEN, VOCAB_SIZE),
                    k=max(1, round(prompt_len * draws.uniform(1 - JITTER, 1 + JITTER))),
                ),
                num_tokens=num_tokens,
            )
            for at_s in times
        ]
    )


def make_arrivals(requests: Sequence[TraceRequest], scale: Scale, vocab_size: int) -> list[Arrival]:
    """Return what to send when. Equal ids become equal tokens, different ones different tokens."""
    choices = range(FIRST_TOKEN, vocab_size)
    return [
        Arrival(
            at_s=at_s,
            token_ids=list(prompt_tokens(request, scale, choices)),
            num_tokens=scale.num_output_tokens(request),
            session_id=scale.session_id(request),
        )
        for at_s, request in zip(arrival_times(requests, scale.speedup), requests, strict=True)
    ]


def ideal_hits(prompts: Iterable[Sequence[int]], block_size: int) -> list[int]:
    """Tokens of each prompt that a cache without bounds already has when it arrives.

    The cache holds full blocks, and the last token of a prompt is always computed.
    """
    cached: set[int] = set()
    hits = []
    for prompt in prompts:
        hashes = list(_chained_hashes(prompt, block_size))
        found = takewhile(cached.__contains__, hashes[: (len(prompt) - 1) // block_size])
        hits.append(block_size * sum(1 for _ in found))
        cached.update(hashes)
    return hits


def _chained_hashes(prompt: Sequence[int], block_size: int) -> Iterator[int]:
    before = 0
    for start in range(0, len(prompt) - block_size + 1, block_size):
        before = hash((before, tuple(prompt[start : start + block_size])))
        yield before
