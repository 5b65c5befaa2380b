"""Speculation changes no token: under every rule, split or together, where workers die and blocks lack."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Any

import pytest

from baton_core.requests.attempt_names import name_at_client
from baton_core.worker.sequence import Sequence
from baton_core.worker.speculative_config import SpeculativeConfig, SpeculativeMethod
from tests.integration.test_ruled_tokens import RULES, SHAPE, make_specs
from tests.models import make_model
from tests.reference import Job, Reference
from tests.sim.checks import check_clean, check_finished
from tests.sim.torch_cluster import DEFAULT_SHAPE, LONGEST_WAIT_S, Backend, Shape, TorchCluster

NUM_TOKENS = 24
SPECULATIVE = SpeculativeConfig(method=SpeculativeMethod.NGRAM, num_speculative_tokens=4)
KINDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"temperature": 0.0}, {}),
    ({"temperature": 0.9, "logprobs": 2, "prompt_logprobs": 1}, {}),
    *(
        (fields | {"min_tokens": min(fields.get("min_tokens", 0), NUM_TOKENS)}, rest)
        for fields, rest in RULES
    ),
]


class OftenRight:
    """Drafts what is expected of a sequence, but for each seventh position."""

    def __init__(self, tokens: Many[int]) -> None:
        self._tokens = tokens

    def propose(self, token_ids: Many[int], num_tokens: int) -> tuple[int, ...]:
        """Return the next tokens, some of them wrong."""
        start = len(token_ids)
        draft = enumerate(self._tokens[start : start + num_tokens], start=start)
        return tuple((token_id + 1) % 200 if at % 7 == 0 else token_id for at, token_id in draft)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(make_model(tmp_path_factory.mktemp("models") / "llama"))


@pytest.fixture(scope="module")
def jobs(reference: Reference) -> list[Job]:
    return reference.draw_jobs(make_specs(KINDS, NUM_TOKENS, max_n=3))


def speculating(
    reference: Reference, jobs: list[Job], backend: Backend | None, shape: Shape, others: tuple[str, ...] = ()
) -> TorchCluster:
    """Return a cluster whose workers draft for these jobs."""
    by_name = {job.spec.request_id: job for job in jobs}

    def make_drafter(seq: Sequence) -> OftenRight:
        job = by_name[name_at_client(seq.seq_id.request_id)]
        return OftenRight([*job.spec.prompt_token_ids, *job.expected[seq.seq_id.index]])

    cluster = TorchCluster(reference.folder, backend, shape, others=others)
    cluster.speculate(SPECULATIVE, make_drafter)
    return cluster


@pytest.mark.parametrize("backend", [None, "in_process"])
@pytest.mark.parametrize("shape", [DEFAULT_SHAPE, SHAPE], ids=["many blocks", "few blocks"])
def test_verified_tokens_are_those_of_the_reference(
    backend: Backend | None, shape: Shape, jobs: list[Job], reference: Reference
) -> None:
    with speculating(reference, jobs, backend, shape) as cluster:
        cluster.serve_jobs(jobs)
        assert cluster.num_accepted_tokens > NUM_TOKENS
        assert shape is DEFAULT_SHAPE or cluster.num_preemptions > 0
        outcomes = [cluster.sim.router.outcomes[job.spec.request_id] for job in jobs]
    for outcome in outcomes:
        params = outcome.spec.params
        if params.logprobs is not None:
            assert [len(entries) for entries in outcome.logprobs.values()] == [NUM_TOKENS] * params.n
            told = {index: [one.token_ids[0] for one in told] for index, told in outcome.logprobs.items()}
            assert told == outcome.tokens, "each position tells of its own token"


@pytest.mark.parametrize("num_before", [20, 90])
def test_a_killed_decode_worker_changes_no_token(
    num_before: int, jobs: list[Job], reference: Reference
) -> None:
    with speculating(reference, jobs, "in_process", DEFAULT_SHAPE, ("d2",)) as cluster:
        sim = cluster.sim
        for job in jobs:
            sim.router.submit(job.spec, timeout_s=600.0)
        outcomes = [sim.router.outcomes[job.spec.request_id] for job in jobs]
        while sum(len(ids) for one in outcomes for ids in one.tokens.values()) < num_before:
            sim.clock.run(sim.clock.now + 0.01)
        sim.crash("d")
        while not all(outcome.ends for outcome in outcomes):
            sim.clock.run(sim.clock.now + 0.5)
            assert sim.clock.now < 300.0, "a request does not end"
        sim.clock.run(sim.clock.now + LONGEST_WAIT_S)
        check_clean(sim)
        for outcome, job in zip(outcomes, jobs, strict=True):
            check_finished(outcome, job.expected)
        assert cluster.num_accepted_tokens > 0
