"""Split over two workers, together on one, in Transformers: the same greedy tokens, whatever happens.

Real models and real connectors under the simulation's clock. Each run is made to chunk prompts, to hit
prefixes and to preempt, and is asked afterwards whether it did.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from baton_core.router_events import FinishRequest
from baton_core.router_messages import RequestSpec
from baton_core.sampling_params import SamplingParams
from tests.models import VARIANTS
from tests.reference import Reference, make_lively_model
from tests.sim.cluster import Outcome
from tests.sim.torch_cluster import Backend, Shape, TorchCluster

NUM_TOKENS = 64
SHARED_LEN = 100
LENGTHS = (1, 2, 31, 32, 33, 150, 600)
"""The prompts longer than SHARED_LEN begin alike."""
TIGHT = Shape(num_blocks=26, max_num_batched_tokens=96)
"""Room for the longest sequence and a little more."""
GREEDY = SamplingParams(temperature=0.0, seed=0, max_tokens=NUM_TOKENS, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Case:
    folder: Path
    prompts: tuple[tuple[int, ...], ...]
    expected: tuple[list[int], ...]


@pytest.fixture(scope="session")
def case_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Return a variant's model folder, prompts and Transformers' tokens."""

    @cache
    def make(variant: str) -> Case:
        folder = tmp_path_factory.mktemp("models") / variant
        reference = Reference(make_lively_model(folder, variant, max_position_embeddings=1024))
        shared, _ = reference.draw_greedy((), SHARED_LEN, 1)
        drawn = []
        for length in LENGTHS:
            prefix = shared if length > SHARED_LEN else ()
            drawn.append(reference.draw_greedy(prefix, length - len(prefix), NUM_TOKENS))
        prompts, expected = zip(*drawn, strict=True)
        return Case(folder, prompts, expected)

    return make


def check_tokens(outcomes: dict[str, Outcome], case: Case) -> list[FinishRequest]:
    ends = []
    for outcome, expected in zip(outcomes.values(), case.expected, strict=True):
        (end,) = outcome.ends
        assert isinstance(end, FinishRequest), end
        assert outcome.tokens == {0: expected}
        ends.append(end)
    return ends


@pytest.mark.parametrize("backend", [None, "in_process", "shared_memory"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_tokens_are_those_of_transformers(
    variant: str, backend: Backend | None, case_of: Callable[[str], Case]
) -> None:
    case = case_of(variant)
    with TorchCluster(case.folder, backend, TIGHT) as cluster:
        for wave in range(2):
            specs = [
                RequestSpec(request_id=f"w{wave}-{len(prompt)}", prompt_token_ids=prompt, params=GREEDY)
                for prompt in case.prompts
            ]
            outcomes = cluster.serve(specs)
            ends = check_tokens({spec.request_id: outcomes[spec.request_id] for spec in specs}, case)
            print(wave, [(e.num_cached_tokens, e.timings.prefill_worker, e.timings.decode_worker, e.timings.transferred_bytes) for e in ends], cluster.num_preemptions)
        print([(n, e.num_open_slices, e.max_batch_len, e.num_pulled_blocks) for n, e in cluster.engines.items()], cluster.sim.clock.now)
