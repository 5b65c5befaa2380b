"""Seeded runs of requests that ask for more: rules, forms, log-probabilities; nothing lost, nothing twice."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from baton_core.errors import ErrorCode
from baton_core.requests.sampling_params import SamplingParams
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_core.sessions.router_messages import RequestSpec
from baton_core.worker.step_plan import LogprobsSpec
from baton_router.core.placement.placement_config import SplitMode
from baton_router.core.router_events import FailRequest, FinishRequest
from baton_simulator.cluster import Cluster
from baton_simulator.conditions import Faults
from baton_simulator.hash_engine import ONE_KIND, VOCAB_SIZE, Windows, position_logprobs
from baton_simulator.network import Weather
from baton_simulator.outcome import Outcome
from baton_simulator.scenario import TWO_KINDS
from baton_simulator.sim_worker import BAD_GRAMMAR
from tests.sim.checks import check_clean
from tests.sim.hash_cluster import check_tokens, make_cluster

ASKED: tuple[dict[str, Any], ...] = (
    {},
    {"repetition_penalty": 1.2},
    {"frequency_penalty": 0.5, "logprobs": 2},
    {"structured_outputs": StructuredOutputsParams(regex="a+")},
    {"structured_outputs": StructuredOutputsParams(json_object=True), "logprobs": 0, "prompt_logprobs": 0},
    {"prompt_logprobs": 3},
    {"prompt_logprobs": 1, "min_tokens": 1},
    {"skip_reading_prefix_cache": True, "logprob_token_ids": (7, 5)},
)


def submit_some(cluster: Cluster, seed: int, *, num_requests: int, cancelled: float) -> None:
    rng = Random(seed + 1)
    shared = tuple(rng.randrange(VOCAB_SIZE) for _ in range(60))
    for number in range(num_requests):
        own = tuple(rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(1, 50)))
        params = SamplingParams(
            n=rng.choice([1, 1, 3]), seed=number, max_tokens=rng.choice([1, 2, 20]), **rng.choice(ASKED)
        )
        spec = RequestSpec(
            request_id=f"q{number}",
            prompt_token_ids=shared[: rng.choice([0, 31, 60])] + own,
            params=params,
            priority=rng.choice([0, 0, 1]) if seed % 2 else 0,
        )
        at_s = rng.uniform(0, 1.0)
        cluster.clock.after(at_s, lambda s=spec: cluster.router.submit(s, timeout_s=60.0))
        if rng.random() < cancelled:
            cluster.clock.after(
                at_s + rng.uniform(0, 0.5), lambda s=spec: cluster.router.cancel(s.request_id)
            )


def check_logprobs(outcome: Outcome) -> None:
    """Each position once and in order; all of them after a finish."""
    params, prompt = outcome.spec.params, outcome.spec.prompt_token_ids
    for index, tokens in outcome.tokens.items():
        spec = LogprobsSpec(num_top=params.logprobs or 0, token_ids=params.logprob_token_ids or ())
        asks = params.logprobs is not None or params.logprob_token_ids is not None
        expected = [
            position_logprobs(token_id, position, spec)
            for position, token_id in enumerate(tokens, start=len(prompt))
        ]
        assert outcome.logprobs[index] == (expected if asks else [])
    told = outcome.prompt_logprobs
    if params.prompt_logprobs is None:
        assert not told
        return
    spec = LogprobsSpec(num_top=params.prompt_logprobs)
    expected = [position_logprobs(prompt[at], at, spec) for at in range(1, len(prompt))]
    assert told == expected[: len(told)]
    assert told == expected or not outcome.tokens


@pytest.mark.parametrize(
    ("seed", "windows"),
    [*((seed, ONE_KIND) for seed in range(18)), *((seed, TWO_KINDS) for seed in range(6))],
)
def test_what_is_asked_for_survives_a_bad_network(seed: int, windows: Windows) -> None:
    weather = Weather(loss=0.05, repeat=0.1, stream_break=0.002, max_delay_s=0.1)
    split = (SplitMode.ALWAYS, SplitMode.AUTO, SplitMode.NEVER)[seed % 3]
    cluster = make_cluster(
        seed,
        weather=weather,
        faults=Faults(pull_failure=0.02, grammar_failure=0.1),
        split=split,
        windows=windows,
        is_abort_safe=seed % 2 == 0,
    )
    submit_some(cluster, seed, num_requests=16, cancelled=0.2)
    cluster.clock.run(90.0)
    for outcome in cluster.router.outcomes.values():
        check_tokens(outcome, windows)
        check_logprobs(outcome)
        (end,) = outcome.ends
        if isinstance(end, FailRequest) and end.code is not ErrorCode.CANCELLED:
            assert outcome.spec.params.structured_outputs is not None
            assert (end.code, end.message) == (ErrorCode.INVALID_REQUEST, BAD_GRAMMAR)
    check_clean(cluster)
    assert not any(len(worker.core.preparations.grammars) for worker in cluster.workers.values())


@pytest.mark.parametrize("seed", range(8))
def test_every_request_that_asks_for_more_ends_when_a_worker_dies(seed: int) -> None:
    cluster = make_cluster(
        seed, weather=Weather(loss=0.02, max_delay_s=0.05), faults=Faults(grammar_failure=0.05)
    )
    submit_some(cluster, seed, num_requests=12, cancelled=0.0)
    victim = "p" if seed % 2 else "d"
    cluster.clock.after(Random(seed).uniform(0.1, 1.0), lambda: cluster.crash(victim))
    cluster.clock.run(90.0)
    for outcome in cluster.router.outcomes.values():
        check_tokens(outcome)
        check_logprobs(outcome)
        (end,) = outcome.ends
        allowed = (ErrorCode.WORKER_LOST, ErrorCode.OVERLOADED, ErrorCode.INVALID_REQUEST)
        assert isinstance(end, FinishRequest) or end.code in allowed, end
    check_clean(cluster)


def test_a_form_that_nobody_compiles_ends_its_request_in_time() -> None:
    cluster = make_cluster(0, faults=Faults(max_prepare_s=1e6))
    params = SamplingParams(seed=1, structured_outputs=StructuredOutputsParams(choice=("yes", "no")))
    spec = RequestSpec(request_id="q", prompt_token_ids=(1, 2, 3), params=params)
    cluster.router.submit(spec, timeout_s=60.0)
    cluster.clock.run(45.0)
    (end,) = cluster.router.outcomes["q"].ends
    assert isinstance(end, FailRequest)
    assert end.code is ErrorCode.DEADLINE_EXCEEDED
    assert "waited 30 s for structured_outputs.choice to be compiled" in end.message
    check_clean(cluster)
