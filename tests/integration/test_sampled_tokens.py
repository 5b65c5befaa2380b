"""Seeded sampling: the same tokens split or together, alone or in any company, cancelled neighbours or not.

The oracle is Transformers' logits under the sampler's rule, so the paged engine has no part in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest

from baton_core.errors import ErrorCode
from baton_core.requests.sampling_params import SamplingParams
from baton_core.sessions.router_messages import RequestSpec
from baton_router.core.router_events import FinishRequest
from baton_simulator.outcome import Outcome
from tests.models import make_model, make_prompt
from tests.reference import Job, Reference
from tests.sim.checks import check_finished
from tests.sim.torch_cluster import Backend, Shape, TorchCluster
from tests.tiers import one_in

BACKENDS = [None, "in_process", "shared_memory"]
FILTERS = ({}, {"top_k": 20}, {"top_p": 0.9}, {"min_p": 0.05}, {"top_k": 50, "top_p": 0.8, "min_p": 0.02})
PROMPT_LENS = (5, 33, 64, 100, 1)
SHAPE = Shape(num_blocks=20, max_num_batched_tokens=48, max_num_seqs=24)
"""Small enough that the crowd is chunked and preempted."""


def shape_for(backend: Backend | None) -> Shape:
    """With one of the backends steps are planned ahead."""
    return replace(SHAPE, async_scheduling=backend == "in_process")


@dataclass(frozen=True, slots=True)
class Case:
    reference: Reference
    sampled: list[Job]
    """Every mix of filters, once with one sequence and once with three."""
    crowd: list[Job]
    """64 requests of all kinds."""

    @property
    def folder(self) -> Path:
        return self.reference.folder


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    reference = Reference(make_model(tmp_path_factory.mktemp("models") / "qwen3", "qwen3"))
    return Case(reference, reference.draw_jobs(_filtered()), reference.draw_jobs(_crowd()))


def _filtered() -> list[RequestSpec]:
    specs = []
    for filters, length in zip(FILTERS, PROMPT_LENS, strict=True):
        for n in (1, 3):
            fields = {"n": n, "temperature": 0.8, "max_tokens": 24, "ignore_eos": True, **filters}
            params = SamplingParams(seed=100 * len(specs), **fields)
            specs.append(make_spec(f"{length}x{n}", make_prompt(length, seed=n), params))
    return specs


def _crowd() -> list[RequestSpec]:
    rng = Random(0)
    shared = make_prompt(90, seed=1)
    specs = []
    for number in range(64):
        prompt = shared[: rng.choice([0, 32, 90])] + make_prompt(rng.randrange(1, 40), seed=number)
        params = SamplingParams(
            n=rng.choice([1, 1, 1, 3]),
            temperature=rng.choice([0.0, 0.8]),
            seed=100 * number,
            max_tokens=rng.choice([1, 9, 30, 40]),
            ignore_eos=True,
        )
        specs.append(make_spec(f"crowd-{number}", prompt, params))
    return specs


def make_spec(request_id: str, prompt: list[int], params: SamplingParams) -> RequestSpec:
    return RequestSpec(request_id=request_id, prompt_token_ids=tuple(prompt), params=params)


@pytest.mark.parametrize("backend", one_in(2, BACKENDS))
def test_sampled_tokens_are_those_of_the_rule(backend: Backend | None, case: Case) -> None:
    with TorchCluster(case.folder, backend, shape_for(backend)) as cluster:
        ends = cluster.serve_jobs(case.sampled)
    num_pulled = sum(engine.num_pulled_blocks for engine in cluster.engines.values())
    assert (num_pulled > 0) == (backend is not None)
    assert {end.timings.decode_worker for end in ends} == {"d" if backend else "m"}
    assert max(engine.max_batch_len for engine in cluster.engines.values()) > 1


def test_a_request_alone_has_the_tokens_it_has_in_a_batch(case: Case) -> None:
    with TorchCluster(case.folder, None, SHAPE) as cluster:
        for job in case.sampled:
            cluster.serve_jobs([job])


@pytest.mark.parametrize("backend", [None, "in_process"])
def test_a_seed_decides_the_tokens(backend: Backend | None, case: Case) -> None:
    specs = [
        make_spec(name, make_prompt(40), params)
        for name, seed in (("first", 1), ("again", 1), ("other", 2))
        for params in (SamplingParams(n=3, seed=seed, max_tokens=12, ignore_eos=True),)
    ]
    with TorchCluster(case.folder, backend, SHAPE) as cluster:
        first, again, other = (outcome.tokens for outcome in cluster.serve(specs))
    assert first == again
    streams = {tuple(tokens) for outcome in (first, other) for tokens in outcome.values()}
    assert len(streams) == 6, "two seeds or two sequences of one request drew the same"


def test_a_crowd_has_its_tokens(case: Case) -> None:
    with TorchCluster(case.folder, None, SHAPE) as cluster:
        cluster.serve_jobs(case.crowd)


@pytest.mark.parametrize("backend", one_in(2, BACKENDS))
def test_cancelled_neighbours_change_no_token(backend: Backend | None, case: Case) -> None:
    rng = Random(3)
    cancelled = {job.spec.request_id for job in rng.sample(case.crowd, len(case.crowd) // 3)}
    with TorchCluster(case.folder, backend, shape_for(backend), pull_delay_s=0.05) as cluster:
        for job in case.crowd:
            at_s = rng.uniform(0, 0.1)
            cluster.submit(job.spec, delay_s=at_s)
            if job.spec.request_id in cancelled:
                name = job.spec.request_id
                cluster.sim.clock.after(
                    at_s + rng.uniform(0, 0.6), lambda n=name: cluster.sim.router.cancel(n)
                )
        cluster.run_to_end(1.0)
    assert cluster.num_preemptions > 0
    outcomes = [cluster.sim.router.outcomes[job.spec.request_id] for job in case.crowd]
    cut = [check_survived_or_cut(*pair, cancelled) for pair in zip(outcomes, case.crowd, strict=True)]
    assert len(cancelled) // 2 < sum(cut) <= len(cancelled), "most cancelled requests were over already"
    has_streamed = [bool(outcome.tokens) for outcome, is_cut in zip(outcomes, cut, strict=True) if is_cut]
    assert any(has_streamed), "none was cancelled while it streamed"
    assert not all(has_streamed), "none was cancelled before its first token"


def check_survived_or_cut(outcome: Outcome, job: Job, cancelled: set[str]) -> bool:
    """Check a request's tokens up to its end; returns whether it was cancelled before it had all."""
    (end,) = outcome.ends
    if isinstance(end, FinishRequest):
        check_finished(outcome, job.expected)
        return False
    assert end.code is ErrorCode.CANCELLED
    assert job.spec.request_id in cancelled
    for index, tokens in outcome.tokens.items():
        assert tokens == job.expected[index][: len(tokens)]
    return True
