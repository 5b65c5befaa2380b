"""Checkpoints that other libraries quantized: greedy tokens, together and split, beside a float reference."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton_core.requests.sampling_params import SamplingParams
from baton_core.sessions.router_messages import RequestSpec
from tests.quantized_reference import CHECKPOINTS, FIXTURES, QuantizedReference
from tests.reference import Job
from tests.sim.torch_cluster import Shape, TorchCluster
from tests.tiers import one_in

GREEDY = SamplingParams(temperature=0.0, seed=0, ignore_eos=True)
SHAPE = Shape(num_blocks=96, max_num_batched_tokens=32)
"""Prompts are computed in chunks."""
PROMPT_LENS = (20, 45, 70)


@pytest.fixture(params=one_in(2, CHECKPOINTS), scope="module")
def jobs(request: pytest.FixtureRequest) -> tuple[str, list[Job]]:
    reference = QuantizedReference(FIXTURES / request.param)
    wanted = [(length, (length,)) for length in PROMPT_LENS]
    drawn = reference.draw_all_greedy(wanted, reference.num_tokens)
    params = replace(GREEDY, max_tokens=reference.num_tokens)
    return request.param, [
        Job(RequestSpec(request_id=f"request-{number}", prompt_token_ids=prompt, params=params), [tokens])
        for number, (prompt, tokens) in enumerate(drawn)
    ]


def test_tokens_are_those_of_the_values_of_the_codes(jobs: tuple[str, list[Job]]) -> None:
    name, expected = jobs
    with TorchCluster(FIXTURES / name, None, SHAPE) as cluster:
        cluster.serve_jobs(expected)


@pytest.mark.parametrize("jobs", one_in(6, CHECKPOINTS[::3]), indirect=True)
def test_they_are_so_when_blocks_are_handed_over(jobs: tuple[str, list[Job]]) -> None:
    """`tools.quantized_matrix` hands over the blocks of every checkpoint."""
    name, expected = jobs
    with TorchCluster(FIXTURES / name, "shared_memory", SHAPE) as cluster:
        cluster.serve_jobs(expected)
