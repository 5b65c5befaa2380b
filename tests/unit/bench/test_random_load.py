"""Loads of random prompts: as many as asked for, of about the length asked for, the same for a seed."""

from __future__ import annotations

import pytest
from random_load import JITTER, random_load


def test_a_load_is_what_was_asked_for() -> None:
    load = random_load(rate=20, seconds=10, prompt_len=100, num_tokens=8, seed="a")
    arrivals = load.arrivals
    assert len(arrivals) == 200
    assert [arrival.at_s for arrival in arrivals] == sorted(arrival.at_s for arrival in arrivals)
    assert arrivals[-1].at_s == pytest.approx(10, rel=0.3)
    lengths = [len(arrival.token_ids) for arrival in arrivals]
    assert 100 * (1 - JITTER) <= min(lengths) < 90 < 110 < max(lengths) <= 100 * (1 + JITTER)
    assert {arrival.num_tokens for arrival in arrivals} == {8}
    assert len({tuple(arrival.token_ids[:20]) for arrival in arrivals}) == 200


def test_a_seed_stands_for_one_load_of_at_least_two() -> None:
    one, other = (
        random_load(rate=0.1, seconds=1, prompt_len=1, num_tokens=1, seed=seed) for seed in ("a", "b")
    )
    assert len(one.arrivals) == len(other.arrivals) == 2
    assert one == random_load(rate=0.1, seconds=1, prompt_len=1, num_tokens=1, seed="a") != other
