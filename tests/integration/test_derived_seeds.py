"""n sequences of one request are those of n requests with the derived seeds, collocated and disaggregated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from baton_core.requests.sampling_params import SamplingParams, derived_seed
from baton_core.sessions.router_messages import RequestSpec
from tests.models import make_prompt
from tests.sim.torch_cluster import Backend, TorchCluster

SEED = 7


@pytest.mark.parametrize("backend", [None, "in_process"])
def test_four_sequences_are_those_of_four_requests_with_the_derived_seeds(
    folder: Path, backend: Backend | None
) -> None:
    params = SamplingParams(n=4, seed=SEED, temperature=1.0, max_tokens=16, ignore_eos=True)
    together = RequestSpec(request_id="n", prompt_token_ids=tuple(make_prompt(40, seed=1)), params=params)
    alone = [
        replace(together, request_id=f"{index}", params=replace(params, n=1, seed=derived_seed(SEED, index)))
        for index in range(4)
    ]
    with TorchCluster(folder, backend) as cluster:
        outcome, *others = cluster.serve([together, *alone])
    assert [outcome.tokens[index] for index in range(4)] == [other.tokens[0] for other in others]
    assert len({tuple(tokens) for tokens in outcome.tokens.values()}) == 4
    assert alone[0].params.seed == SEED
