"""A stream that moves because its worker died has the tokens that Transformers gives."""

from __future__ import annotations

from typing import Any

import pytest

from baton_router.core.router_events import FinishRequest
from tests.integration.test_ruled_tokens import RULES, make_specs
from tests.models import make_model
from tests.reference import Job, Reference
from tests.sim.checks import check_clean, check_finished
from tests.sim.torch_cluster import LONGEST_WAIT_S, Backend, TorchCluster

NUM_TOKENS = 24
KINDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"temperature": 0.0}, {}),
    ({"temperature": 0.9, "logprobs": 2, "prompt_logprobs": 1}, {}),
    *(
        (fields | {"min_tokens": min(fields.get("min_tokens", 0), NUM_TOKENS)}, rest)
        for fields, rest in RULES
    ),
]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(make_model(tmp_path_factory.mktemp("models") / "llama"))


@pytest.fixture(scope="module")
def jobs(reference: Reference) -> list[Job]:
    return reference.draw_jobs(make_specs(KINDS, NUM_TOKENS, max_n=3))


@pytest.mark.parametrize(
    ("backend", "others", "victims"),
    [("in_process", ("d2",), ("d",)), (None, ("m2", "m3"), ("m", "m2")), ("in_process", ("p2",), ("p",))],
    ids=["a decode worker", "two mixed workers", "a prefill worker"],
)
@pytest.mark.parametrize("num_before", [1, 9])
def test_moved_tokens_are_those_of_the_reference(
    backend: Backend | None,
    others: tuple[str, ...],
    victims: tuple[str, ...],
    num_before: int,
    jobs: list[Job],
    reference: Reference,
) -> None:
    with TorchCluster(reference.folder, backend, others=others) as cluster:
        sim = cluster.sim
        for job in jobs:
            sim.router.submit(job.spec, timeout_s=600.0)
        outcomes = [sim.router.outcomes[job.spec.request_id] for job in jobs]
        for number, victim in enumerate(victims, start=1):
            while sum(len(ids) for one in outcomes for ids in one.tokens.values()) < num_before * number * 14:
                sim.clock.run(sim.clock.now + 0.01)
            sim.crash(victim)
        while not all(outcome.ends for outcome in outcomes):
            sim.clock.run(sim.clock.now + 0.5)
            assert sim.clock.now < 300.0, "a request does not end"
        sim.clock.run(sim.clock.now + LONGEST_WAIT_S)
        check_clean(sim)
        ends = [check_finished(one, job.expected) for one, job in zip(outcomes, jobs, strict=True)]
    for end, outcome in zip(ends, outcomes, strict=True):
        assert isinstance(end, FinishRequest)
        params = outcome.spec.params
        assert end.num_output_tokens == params.n * NUM_TOKENS
        if params.logprobs is not None:
            assert [len(entries) for entries in outcome.logprobs.values()] == [NUM_TOKENS] * params.n
            assert len(outcome.prompt_logprobs) == len(outcome.spec.prompt_token_ids) - 1
