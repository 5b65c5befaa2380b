"""Hands prompts over between workers of different sizes, over each transport, and compares with Transformers.

Writes the result as a table into docs/models.md, cell by cell:

    python -m tools.pairing_matrix

A router, a prefill and a decode worker are real processes; each rank has a KV pool of its own, so blocks
go from ranks to ranks in slices of layers and heads. Exits with 1 if any token differs, or comes otherwise.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Any, Final

import torch

from tests.e2e.processes import BATON, NO_GRAMMARS, Cluster, starting, stop
from tools.document_table import DocumentTable
from tools.model_matrix import DIFFERENT
from tools.rank_matrix import NOT_RUN, PATIENCE, SETTINGS, Case, compare_cluster, flags_of

FAMILY: Final = "llama"
SIZES: Final[Mapping[str, Mapping[str, Any]]] = {
    "TP 1": {},
    "TP 2": {"tensor_parallel_size": 2},
    "TP 4": {"tensor_parallel_size": 4},
    "PP 2": {"pipeline_parallel_size": 2},
    "TP 2, PP 2": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
}
TRANSPORTS: Final = ("shared_memory", "tcp", "nixl")
RECOMPUTED: Final = "recomputed"
"""Sign of tokens that are right though their blocks did not arrive."""
TABLE: Final = DocumentTable(
    tool="pairing_matrix",
    heading=["prefill", "decode", *TRANSPORTS],
    keys=list(product(SIZES, SIZES)),
)


@contextmanager
def pair(folder: Path, case: Case, sizes: Mapping[str, str], transport: str) -> Iterator[Cluster]:
    """Run a router and a worker of each role; `sizes` are by role."""
    with ExitStack() as stack:
        command = (*BATON, "router", str(case.folder))
        cluster = stack.enter_context(starting(folder, *PATIENCE, "--split", "always", command=command))
        log = stack.enter_context((folder / "workers.log").open("wb"))
        for role, size in sizes.items():
            fields = {**SETTINGS, **SIZES[size], "rank_pools": "apart", "kv_transport": transport}
            worker = (*BATON, f"{role}-worker", str(case.folder), "--router", cluster.address)
            process = subprocess.Popen((*worker, *NO_GRAMMARS, *flags_of(fields)), stderr=log)
            stack.callback(stop, process)
        yield cluster


def compare(case: Case, sizes: Sequence[str], transport: str) -> str:
    """Return the signs of a cell."""
    by_role = dict(zip(("prefill", "decode"), sizes, strict=True))
    with tempfile.TemporaryDirectory(prefix="baton-pairs-") as root:
        folder = Path(root) / "run"
        with pair(folder, case, by_role, transport) as cluster:
            signs = compare_cluster(case, cluster, 2)
        log = (folder / "workers.log").read_text(encoding="utf-8")
    have_come = f"came over {transport}" in log and "did not arrive" not in log
    return signs if have_come else f"{signs} {RECOMPUTED}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the table of pairings in docs/models.md.")
    parser.add_argument(
        "--prefill", nargs="*", choices=SIZES, help="run these sizes of prefill workers alone"
    )
    parser.add_argument("--missing", action="store_true", help="run cells alone that have not been run")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # The model is too small for more.
    for key in TABLE.keys:
        if key not in TABLE.read():
            TABLE.write([*key, *[NOT_RUN] * len(TRANSPORTS)])
    is_wrong = False
    with tempfile.TemporaryDirectory() as root:
        case = Case.draw(Path(root) / FAMILY, FAMILY)
        for key in TABLE.keys:
            if arguments.prefill and key[0] not in arguments.prefill:
                continue
            row = TABLE.read()[key]
            for column, transport in enumerate(TRANSPORTS, len(key)):
                if arguments.missing and row[column] != NOT_RUN:
                    continue
                row[column] = compare(case, key, transport)
                is_wrong |= DIFFERENT in row[column] or RECOMPUTED in row[column]
                print(*key, transport, row[column], flush=True)
                TABLE.write(row)
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
