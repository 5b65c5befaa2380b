"""Split over two workers, together on one, in Transformers: the same greedy tokens, whatever happens.

Real models and real connectors under the simulation's clock. Each run is made to chunk prompts, to hit
prefixes and to preempt, and is asked afterwards whether it did.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

from baton_core.requests.sampling_params import SamplingParams
from baton_core.sessions.router_messages import RequestSpec
from baton_engine.models.registry import read_model_config
from tests.models import VARIANTS, make_model
from tests.reference import Job, Reference
from tests.sim.torch_cluster import Backend, Shape, TorchCluster
from tests.tiers import chosen

NUM_TOKENS = 40
GREEDY = SamplingParams(temperature=0.0, seed=0, max_tokens=NUM_TOKENS, ignore_eos=True)
SHARED_LEN = 100
LENGTHS = (1, 2, 31, 32, 33, 150, 600)
"""The prompts longer than SHARED_LEN begin alike."""


@dataclass(frozen=True, slots=True)
class Case:
    folder: Path
    jobs: tuple[Job, ...]

    def again(self, name: str) -> list[Job]:
        """The same requests under other names."""
        return [
            replace(job, spec=replace(job.spec, request_id=f"{name}-{i}")) for i, job in enumerate(self.jobs)
        ]


def tight_shape(folder: Path) -> Shape:
    """Room for the longest sequence and one of the second longest and some more, not for all."""
    shape = Shape(max_num_batched_tokens=96)
    paging = read_model_config(folder).kv_spec(shape.block_size, "float32").paging
    longest = paging.max_blocks(LENGTHS[-1] + 64, shape.max_num_batched_tokens)
    return replace(shape, num_blocks=longest + paging.num_blocks(LENGTHS[-2] + 64))


def make_jobs(reference: Reference) -> tuple[Job, ...]:
    shared, _ = reference.draw_greedy(SHARED_LEN, 1)
    drawn = reference.draw_all_greedy([(n, shared if n > SHARED_LEN else ()) for n in LENGTHS], NUM_TOKENS)
    return tuple(
        Job(RequestSpec(request_id=str(len(prompt)), prompt_token_ids=prompt, params=GREEDY), [tokens])
        for prompt, tokens in drawn
    )


@pytest.fixture(scope="module")
def case_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Return a variant's model folder, and requests with Transformers' tokens."""

    @cache
    def make(variant: str) -> Case:
        folder = tmp_path_factory.mktemp("models") / variant
        reference = Reference(make_model(folder, variant, max_position_embeddings=1024))
        return Case(folder, make_jobs(reference))

    return make


HANDED_OVER = (
    *("llama", "llama-mqa-wide-heads", "qwen2-mixed-windows", "mistral-window", "gemma2", "gemma3"),
    *("gpt2", "gpt-neox", "phi3-longrope", "starcoder2-window", "gpt-oss"),
)
"""One of each shape of KV blocks and groups; those of the other variants travel no differently."""
OVER_ALL = ("llama", "gemma2")
"""One KV group and two."""


def backends_of(variant: str) -> tuple[Backend | None, ...]:
    handed_over: tuple[Backend, ...] = ("shared_memory",) if variant in HANDED_OVER else ()
    return (None, *handed_over, "in_process", "tcp") if variant in OVER_ALL else (None, *handed_over)


@pytest.mark.parametrize(
    ("variant", "backend"),
    chosen(
        ((variant, backend) for variant in VARIANTS for backend in backends_of(variant)),
        lambda variant, backend: backend == ("shared_memory" if variant in HANDED_OVER else None),
    ),
)
def test_greedy_tokens_are_those_of_transformers(
    variant: str, backend: Backend | None, case_of: Callable[[str], Case]
) -> None:
    case = case_of(variant)
    with TorchCluster(case.folder, backend, tight_shape(case.folder)) as cluster:
        first = cluster.serve_jobs(case.again("first"))
        second = cluster.serve_jobs(case.again("second"))
    prefiller, decoder = (cluster.engines[name] for name in ("pd" if backend else "mm"))
    assert any(end.num_cached_tokens > 0 for end in second), "no prefix hit"
    assert prefiller.num_open_slices > 0, "no chunked prefill"
    assert cluster.num_preemptions > 0, "no preemption"
    assert decoder.max_batch_len >= len(LENGTHS) - 1, "no batching"
    if backend is not None:
        used = [(end.timings.prefill_worker, end.timings.decode_worker) for end in first]
        assert used[0] == ("d", "d")
        assert used.count(("p", "d")) >= len(LENGTHS) - 2, "one may find all but its last token at d"
        assert decoder.num_pulled_blocks > 0
        assert any(end.timings.transferred_bytes > 0 for end in second), "no import next to cached blocks"


@pytest.mark.parametrize("backend", ["in_process", "shared_memory"])
def test_requests_with_one_prompt_import_its_full_blocks_once(
    backend: Backend, case_of: Callable[[str], Case]
) -> None:
    case = case_of("llama")
    (job,) = [job for job in case.jobs if job.spec.request_id == "150"]
    twins = Case(case.folder, (job,) * 5)
    with TorchCluster(case.folder, backend, pull_delay_s=0.5) as cluster:
        cluster.serve_jobs(twins.again("twin"))
    num_full_blocks, num_tails = 150 // 32, 5
    assert cluster.engines["d"].num_pulled_blocks == num_full_blocks + num_tails
