"""Compares every small model of the tests with Transformers, in every way a cluster can run it.

Writes the result as a table into docs/models.md, row by row:

    python -m tools.model_matrix

Exits with 1 if any token differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Final
from unittest.mock import patch

import torch

from baton_core.requests.sampling_params import SamplingParams
from baton_core.sessions.router_messages import RequestSpec
from baton_engine import loading
from baton_engine.checkpoint.model_config import ModelConfig
from baton_engine.kernel_choice import invariant_kernels
from baton_kernels.cpu.selection import load_build
from baton_kernels.interface.kernels import Kernels
from baton_kernels.selection import select_kernels
from baton_router.core.router_events import FinishRequest
from tests.models import VARIANTS, make_model
from tests.reference import Job, Reference
from tests.sim.torch_cluster import Backend, Shape, TorchCluster
from tools.document_table import DocumentTable

KERNELS: Final = ("torch", "C++")
BATCH_INVARIANT: Final = "batch-invariant"
ARRANGEMENTS: Final[dict[str, Backend | None]] = {
    "together": None,
    "in process": "in_process",
    "shared memory": "shared_memory",
    "TCP": "tcp",
}
WAYS: Final = tuple(product(KERNELS, ARRANGEMENTS))
TABLE: Final = DocumentTable(
    tool="model_matrix",
    heading=["model", *(", ".join(way) for way in WAYS)],
    keys=[(f"`{variant}`",) for variant in VARIANTS],
)
WHOLE: Final = Shape(num_blocks=96, max_num_batched_tokens=1024)
CHUNKED: Final = replace(WHOLE, max_num_batched_tokens=96)
PROMPT_LENS: Final = (33, 70, 200)
NUM_TOKENS: Final = 24
EQUAL: Final = "="
DIFFERENT: Final = "≠"


@dataclass(frozen=True, slots=True)
class Case:
    """A model folder, and requests with Transformers' tokens."""

    folder: Path
    jobs: tuple[Job, ...]

    @classmethod
    def draw(cls, folder: Path, variant: str) -> Case:
        return cls.of(Reference(make_model(folder, variant, max_position_embeddings=1024)), NUM_TOKENS)

    @classmethod
    def of(cls, reference: Reference, num_tokens: int) -> Case:
        params = SamplingParams(temperature=0.0, seed=0, max_tokens=num_tokens, ignore_eos=True)
        # A first token of its own: no prompt finds another's blocks in the cache.
        drawn = reference.draw_all_greedy([(n, (n % 97,)) for n in PROMPT_LENS], num_tokens)
        return cls(
            reference.folder,
            tuple(
                Job(RequestSpec(request_id="", prompt_token_ids=prompt, params=params), [tokens])
                for prompt, tokens in drawn
            ),
        )

    def named(self, name: str) -> list[Job]:
        """The requests under names of their own."""
        return [
            replace(job, spec=replace(job.spec, request_id=f"{name}-{index}"))
            for index, job in enumerate(self.jobs)
        ]


def compare(case: Case, kernels: str, backend: Backend | None, shape: Shape) -> str:
    """Serve the requests cold, then again from the cache; return a sign for each of the two passes.

    Raises:
        AssertionError: the run was not what the table says of it: chunked or whole, cached or cold.
    """
    with using_kernels(kernels), TorchCluster(case.folder, backend, shape) as cluster:
        cold, num_cached_cold = _serve(cluster, case.named("cold"))
        cached, num_cached = _serve(cluster, case.named("cached"))
        prefiller = cluster.engines["p" if backend else "m"]
        assert (prefiller.num_open_slices > 0) == (shape is CHUNKED), "prompts were not divided as said"
        assert num_cached_cold == 0 < num_cached, "the cache was not used as said"
        assert backend is None or cluster.engines["d"].num_pulled_blocks > 0, "nothing was transferred"
    return cold + cached


def _serve(cluster: TorchCluster, jobs: Sequence[Job]) -> tuple[str, int]:
    """Return the sign of one pass and how many prompt tokens came from a cache."""
    outcomes = cluster.serve([job.spec for job in jobs])
    ends = [end for outcome in outcomes for end in outcome.ends if isinstance(end, FinishRequest)]
    assert len(ends) == len(jobs), "a request did not finish"
    is_equal = all(
        outcome.tokens == dict(enumerate(job.expected)) for outcome, job in zip(outcomes, jobs, strict=True)
    )
    return EQUAL if is_equal else DIFFERENT, sum(end.num_cached_tokens for end in ends)


@contextmanager
def using_kernels(name: str) -> Iterator[None]:
    """Let workers on the CPU that are loaded meanwhile compute with these kernels."""
    if name != "torch" and load_build() is None:
        raise SystemExit("the C++ kernels cannot be built here; allowed: a machine with a C++ compiler")

    def choose(config: ModelConfig, device: torch.device, dtype: torch.dtype, **_: object) -> Kernels:
        if name == BATCH_INVARIANT:
            return invariant_kernels(config, device, dtype, "auto")
        return select_kernels(device, dtype, "torch" if name == "torch" else "auto")

    with patch.object(loading, "choose_kernels", choose):
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the table of docs/models.md.")
    parser.add_argument("--only", nargs="*", choices=tuple(VARIANTS), help="compare these and write nothing")
    only = parser.parse_args().only
    torch.set_num_threads(1)  # The models are too small for more.
    is_different = False
    with tempfile.TemporaryDirectory() as root:
        for variant in only or VARIANTS:
            case, row = Case.draw(Path(root) / variant, variant), [f"`{variant}`"]
            for kernels, arrangement in WAYS:
                passes = [
                    compare(case, kernels, ARRANGEMENTS[arrangement], shape) for shape in (WHOLE, CHUNKED)
                ]
                row.append(" ".join("".join(passes)))
                is_different |= DIFFERENT in row[-1]
                print(variant, kernels, arrangement, *passes, flush=True)
            if not only:
                TABLE.write(row)
    return int(is_different)


if __name__ == "__main__":
    sys.exit(main())
