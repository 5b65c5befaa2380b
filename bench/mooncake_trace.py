"""A trace's requests as an open-loop load, and what a perfect cache would save of it.

The trace's format, and how it is made smaller, is the simulator's (baton_simulator.capacity.trace_formats).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from arrivals import Arrival

from baton_bench.token_source import FIRST_TOKEN
from baton_bench.trace_prompts import prompt_tokens
from baton_simulator.capacity.trace import Scale, arrival_times
from baton_simulator.capacity.trace_formats import TraceRequest


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
