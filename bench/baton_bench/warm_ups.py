"""Requests before a measurement: as long as its own, with prompts that share nothing with theirs."""

from __future__ import annotations

import random
from collections.abc import Sequence

from baton_bench.answers import BenchRequest
from baton_bench.token_source import TokenSource


def warm_ups(
    requests: Sequence[BenchRequest], count: int, rng: random.Random, source: TokenSource
) -> list[BenchRequest]:
    """Return `count` requests, as long as those that are measured, of which there is at least one.

    Their prompts are random tokens. A text that the source cannot write, for want of a tokenizer, is the
    words of a measured prompt in random order.
    """
    return [_warm_up(requests[number % len(requests)], rng, source) for number in range(count)]


def _warm_up(measured: BenchRequest, rng: random.Random, source: TokenSource) -> BenchRequest:
    if isinstance(measured.prompt, str) and not source.writes_text:
        words = measured.prompt.split()
        rng.shuffle(words)
        return BenchRequest(
            prompt=" ".join(words) or measured.prompt,
            num_prompt_tokens=measured.num_prompt_tokens,
            num_tokens=measured.num_tokens,
        )
    ids = source.sample(rng, measured.num_prompt_tokens)
    return source.request(rng, ids, measured.num_tokens)
