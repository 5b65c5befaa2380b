"""Loads of prompts that share nothing and come at random times."""

from __future__ import annotations

import random
from itertools import accumulate

from arrivals import Arrival, Load
from worker_sizing import VOCAB_SIZE

from baton_bench.token_source import FIRST_TOKEN

JITTER = 0.25
"""A prompt is at most this much shorter or longer than asked for, relative."""


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
