"""Loads of a replay: prompts of a trace, what a perfect cache would save of them, and random prompts."""

from __future__ import annotations

import pytest

from baton_simulator.capacity.trace import Scale
from baton_simulator.capacity.trace_formats import TraceRequest
from bench.replay.loads import JITTER, ideal_hits, make_arrivals, random_load

VOCAB_SIZE = 4096


def make_request(
    *ids: int, length: int | None = None, at_ms: int = 0, output_length: int = 160
) -> TraceRequest:
    """A request whose last id is full unless a length says otherwise."""
    input_length = 512 * len(ids) if length is None else length
    return TraceRequest(
        timestamp=at_ms, input_length=input_length, output_length=output_length, hash_ids=list(ids)
    )


def make_prompts(*requests: TraceRequest) -> list[list[int]]:
    arrivals = make_arrivals(requests, Scale(divisor=16), VOCAB_SIZE)
    return [arrival.token_ids for arrival in arrivals]


def test_prompts_share_as_many_tokens_as_their_requests_share_ids() -> None:
    one, other = make_prompts(make_request(1, 2, 3), make_request(1, 2, 4))
    assert (len(one), len(other)) == (96, 96)
    assert one[:64] == other[:64]
    assert one[64:] != other[64:]


def test_what_the_last_id_does_not_fill_is_left_out() -> None:
    whole, part, least = make_prompts(
        make_request(1, 2), make_request(1, 2, length=512 + 160), make_request(1, 2, length=513)
    )
    assert part == whole[: 32 + 10]
    assert least == whole[: 32 + 1]


def test_a_prompt_does_not_depend_on_the_others() -> None:
    assert make_prompts(make_request(5, 6))[0] == make_prompts(make_request(1), make_request(5, 6))[1]


def test_answers_have_a_divisor_of_their_own_and_are_never_empty() -> None:
    requests = [make_request(1, output_length=length) for length in (160, 3)]
    arrivals = make_arrivals(requests, Scale(divisor=16, output_divisor=8), VOCAB_SIZE)
    assert [arrival.num_tokens for arrival in arrivals] == [20, 1]


def test_requests_of_one_conversation_have_one_session_unless_none_is_sent() -> None:
    requests = [make_request(0, 7), make_request(0, 7, 9), make_request(0, 8), make_request(0)]
    sessions = [one.session_id for one in make_arrivals(requests, Scale(), VOCAB_SIZE)]
    assert sessions == [f"conversation-{number}" for number in (7, 7, 8, 0)]
    silent = make_arrivals(requests, Scale(has_sessions=False), VOCAB_SIZE)
    assert {one.session_id for one in silent} == {""}


def test_a_prefix_counts_once_it_has_come_before() -> None:
    first, second = list(range(100)), [*range(64), *range(500, 536)]
    assert ideal_hits([first, second], 32) == [0, 64]


def test_the_last_token_of_a_prompt_is_never_a_hit() -> None:
    prompt = list(range(64))
    assert ideal_hits([prompt, prompt, [*prompt, 1]], 32) == [0, 32, 64]


def test_a_block_counts_only_behind_the_same_blocks() -> None:
    tail = list(range(32, 64))
    assert ideal_hits([list(range(64)), [7] * 32 + tail + [1]], 32) == [0, 0]


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
