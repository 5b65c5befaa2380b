"""Draws under rules: the same tokens split or together, also where sequences are preempted.

The oracle is Transformers' logits under rules that begin anew with every token, so an engine that remembers
something wrong of the draws before is found out.
"""

from __future__ import annotations

from typing import Any

import pytest

from baton_core.requests.sampling_params import SamplingParams
from baton_core.requests.sampling_rules import ThinkingBudget
from baton_core.sessions.router_messages import RequestSpec
from tests.models import make_model, make_prompt
from tests.reference import Job, Reference
from tests.sim.torch_cluster import Backend, Shape, TorchCluster

NUM_TOKENS = 40
START, END = 70, (71, 72)
RULES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"repetition_penalty": 1.6, "frequency_penalty": 0.4, "presence_penalty": 0.3}, {}),
    ({"temperature": 0.0, "repetition_penalty": 1.3}, {}),
    (
        {"logit_bias": {5: 3.0, 6: 3.0}, "allowed_token_ids": tuple(range(64)), "top_k": 30},
        {"bad_words": ((5,), (6, 6), (6, 7, 8))},
    ),
    ({"min_tokens": NUM_TOKENS, "stop_token_ids": tuple(range(3, 200)), "top_p": 0.9}, {}),
    (
        {"logit_bias": {START: 8.0, 71: -100.0}, "thinking_token_budget": 3},
        {"thinking": ThinkingBudget(num_tokens=3, start_token_ids=(START,), end_token_ids=END)},
    ),
]
"""Parameters of sampling, and what of them the router has put into tokens."""
SHAPE = Shape(num_blocks=14, max_num_batched_tokens=48, max_num_seqs=16)
"""Too small for all sequences at once."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(make_model(tmp_path_factory.mktemp("models") / "llama"))


@pytest.fixture(scope="module")
def jobs(reference: Reference) -> list[Job]:
    return reference.draw_jobs(make_specs(RULES, NUM_TOKENS, max_n=2))


def make_specs(
    kinds: list[tuple[dict[str, Any], dict[str, Any]]], num_tokens: int, max_n: int
) -> list[RequestSpec]:
    """Requests with such rules, of 1 to `max_n` sequences in turn."""
    specs = []
    for number, (fields, in_tokens) in enumerate(kinds):
        counts = {"n": 1 + number % max_n, "max_tokens": num_tokens, "seed": 100 * number}
        params = SamplingParams(ignore_eos=True, **counts, **fields)
        prompt = tuple(make_prompt(30 + 9 * number, seed=number, vocab_size=200))
        specs.append(RequestSpec(request_id=f"{number}", prompt_token_ids=prompt, params=params, **in_tokens))
    return specs


def test_the_rules_show_in_the_reference(jobs: list[Job]) -> None:
    outputs = [tuple(tokens) for job in jobs for tokens in job.expected]
    assert (len(outputs), len(set(outputs))) == (7, 6), "greedy sequences of one prompt alone are the same"
    penalised, ended, thought = jobs[1].expected[0], jobs[3].expected, jobs[4].expected[0]
    assert len(set(penalised)) > NUM_TOKENS // 2
    assert not {token_id for tokens in ended for token_id in tokens} & set(range(3, 200))
    start = thought.index(START)
    assert thought[start + 4 : start + 6] == [*END]


@pytest.mark.parametrize("backend", [None, "in_process"])
def test_ruled_tokens_are_those_of_the_reference(
    backend: Backend | None, jobs: list[Job], reference: Reference
) -> None:
    with TorchCluster(reference.folder, backend, SHAPE) as cluster:
        cluster.serve_jobs(jobs)
    assert cluster.num_preemptions > 0 or backend is not None
