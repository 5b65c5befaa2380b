"""Compares small models over several ranks with one process and with Transformers.

Writes the result as a table into docs/models.md, cell by cell:

    python -m tools.rank_matrix

Ranks are real processes, or actors of a Ray cluster of one node. Together is one engine in `LLM`; split is a
prefill and a decode worker, each of these sizes, behind a router. Exits with 1 if any token differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

import ray
import torch
from ray.cluster_utils import Cluster as RayCluster

from baton import LLM, EngineArgs, SamplingParams
from tests.e2e.calls import answer, ask
from tests.e2e.processes import NO_GRAMMARS, ONE_MIXED, SERVE, Cluster, starting, until
from tests.models import make_model
from tests.reference import Reference
from tools.document_table import DocumentTable
from tools.model_matrix import DIFFERENT, EQUAL

ONE_PROCESS: Final = "one process"
SIZES: Final[Mapping[str, Mapping[str, Any]]] = {
    ONE_PROCESS: {},
    "TP 2": {"tensor_parallel_size": 2},
    "TP 4": {"tensor_parallel_size": 4},
    "PP 2": {"pipeline_parallel_size": 2},
    "PP 3": {"pipeline_parallel_size": 3},
    "TP 2, PP 2": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
    "EP 2": {"tensor_parallel_size": 2, "enable_expert_parallel": True},
    "DP 2": {"data_parallel_size": 2},
}
FAMILIES: Final = ("llama", "qwen2-moe", "mistral-window")
MIXTURES: Final = ("qwen2-moe",)
WAYS: Final = tuple(product(("processes", "Ray"), ("together", "split")))
TABLE: Final = DocumentTable(
    tool="rank_matrix",
    heading=["model", "ranks", *(", ".join(way) for way in WAYS)],
    keys=[
        (f"`{family}`", size)
        for family in FAMILIES
        for size in SIZES
        if family in MIXTURES or not size.startswith("EP")
    ],
)
NOT_RUN: Final = "not run"
NUM_LAYERS: Final = 4
PROMPT_LENS: Final = (33, 70, 150)
NUM_TOKENS: Final = 12
SETTINGS: Final = {
    "dtype": "float32",
    "kv_cache_memory_bytes": 16 << 20,
    "max_num_batched_tokens": 96,
    "max_model_len": 256,
}
READY_WITHIN_S: Final = 600.0
ANSWERS_WITHIN_S: Final = 300.0
PATIENCE: Final = ("--queue-timeout", str(ANSWERS_WITHIN_S))
"""Eight processes of two workers may share few cores."""
NUM_CPUS: Final = 8
"""CPUs that the node of the Ray cluster takes itself to have: places for so many ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model folder, with prompts and Transformers' tokens after them."""

    folder: Path
    prompts: list[list[int]]
    expected: list[list[int]]

    @classmethod
    def draw(cls, folder: Path, family: str) -> Case:
        reference = Reference(make_model(folder, family, num_layers=NUM_LAYERS))
        # A first token of its own: no prompt finds another's blocks in the cache.
        drawn = reference.draw_all_greedy([(length, (length,)) for length in PROMPT_LENS], NUM_TOKENS)
        return cls(
            folder=folder,
            prompts=[list(prompt) for prompt, _ in drawn],
            expected=[list(tokens) for _, tokens in drawn],
        )

    def sign(self, found: Sequence[Sequence[int]]) -> str:
        return EQUAL if [list(tokens) for tokens in found] == self.expected else DIFFERENT


PARAMS: Final = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)


def compare_engine(case: Case, fields: Mapping[str, Any]) -> str:
    """Serve the prompts cold, then from the cache, with one `LLM`; return a sign for each of the two."""
    with LLM.from_engine_args(EngineArgs(model=str(case.folder), **SETTINGS, **fields)) as llm:
        passes = [llm.generate(case.prompts, PARAMS, use_tqdm=False) for _ in range(2)]
    return "".join(case.sign([output.outputs[0].token_ids for output in outputs]) for outputs in passes)


def compare_cluster(case: Case, cluster: Cluster, num_workers: int) -> str:
    """As `compare_engine`, with a running cluster of so many workers."""
    until(lambda: len(cluster.info().workers) == num_workers, READY_WITHIN_S, f"{num_workers} workers")

    def generate(prompt: list[int]) -> Sequence[int]:
        (output,), _ = answer(cluster.stub.Generate(ask(prompt, PARAMS), timeout=ANSWERS_WITHIN_S))
        return output.token_ids

    with ThreadPoolExecutor(len(case.prompts)) as threads:
        return "".join(case.sign(list(threads.map(generate, case.prompts))) for _ in range(2))


def flags_of(fields: Mapping[str, Any]) -> list[str]:
    """Return settings as flags of a command."""
    flags = []
    for name, value in fields.items():
        flags += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return flags


def compare(case: Case, size: str, way: tuple[str, str], address: str) -> str:
    """Return the signs of a cell; "" where there is no such."""
    (backend, arrangement), fields = way, dict(SIZES[size])
    is_apart = size.startswith("DP")
    if backend == "Ray":
        if is_apart or size == ONE_PROCESS:
            return ""  # each worker is one process
        fields |= {"distributed_executor_backend": "ray", "ray_address": address}
    if arrangement == "together" and not is_apart:
        return compare_engine(case, fields)
    flags = flags_of({**SETTINGS, **fields})
    with tempfile.TemporaryDirectory(prefix="baton-ranks-") as root:
        folder = Path(root) / "run"
        workers = ("--split", "always") if arrangement == "split" else ONE_MIXED
        command = (*SERVE, str(case.folder))
        with starting(folder, *PATIENCE, *NO_GRAMMARS, *flags, *workers, command=command) as cluster:
            num_workers = (2 if arrangement == "split" else 1) * fields.get("data_parallel_size", 1)
            return compare_cluster(case, cluster, num_workers)


@contextmanager
def ray_cluster() -> Iterator[str]:
    """Start a Ray cluster of one node; gives its address."""
    node = {"num_cpus": NUM_CPUS, "object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = RayCluster(initialize_head=True, head_node_args=node)
    try:
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the table of ranks in docs/models.md.")
    parser.add_argument("--only", nargs="*", choices=FAMILIES, help="run these models alone")
    parser.add_argument("--sizes", nargs="*", choices=SIZES, help="run these rows alone")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # The models are too small for more.
    for key in TABLE.keys:
        if key not in TABLE.read():
            TABLE.write([*key, *[NOT_RUN] * len(WAYS)])
    is_different = False
    with tempfile.TemporaryDirectory() as root, ray_cluster() as address:
        for family in arguments.only or FAMILIES:
            case = Case.draw(Path(root) / family, family)
            for key in TABLE.keys:
                if key[0] != f"`{family}`" or (arguments.sizes and key[1] not in arguments.sizes):
                    continue
                row = [*key, *[NOT_RUN] * len(WAYS)]
                for column, way in enumerate(WAYS, len(key)):
                    row[column] = compare(case, key[1], way, address)
                    is_different |= DIFFERENT in row[column]
                    print(*key, *way, row[column], flush=True)
                    TABLE.write(row)
    return int(is_different)


if __name__ == "__main__":
    sys.exit(main())
