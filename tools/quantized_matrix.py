"""Compares every quantized checkpoint of the tests with a float reference, in the ways a cluster can run it.

Writes the result as a table into docs/models.md, row by row:

    python -m tools.quantized_matrix

The checkpoints were written by the packages that the table names. The reference is Transformers' model in
float32, with the values for which the codes stand and inputs rounded as the checkpoint says. Exits with 1 if
any token differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Final

import torch

from baton import LLM, EngineArgs, SamplingParams
from baton_core.errors import InvalidConfigError, InvalidModelError
from tests.quantized_reference import CHECKPOINTS, FIXTURES, QuantizedReference, copy_with_tokenizer
from tools.document_table import DocumentTable
from tools.model_matrix import (
    ARRANGEMENTS,
    BATCH_INVARIANT,
    CHUNKED,
    DIFFERENT,
    EQUAL,
    KERNELS,
    WHOLE,
    Case,
    compare,
)

RANKS: Final = "TP 2"
WAYS: Final = tuple(product((*KERNELS, BATCH_INVARIANT), ("together", "shared memory", RANKS)))
REFUSED: Final = "refused"
UNDIVIDABLE: Final = ("cannot be divided over ranks", "does not divide")
TABLE: Final = DocumentTable(
    tool="quantized_matrix",
    heading=["checkpoint", "written by", "scheme", *(", ".join(way) for way in WAYS)],
    keys=[(f"`{name}`",) for name in CHECKPOINTS],
)


def compare_ranks(case: Case, folder: Path, kernels: str) -> str:
    """Serve the requests in chunks over two processes, cold and from the cache; return two signs.

    `folder` is that of the checkpoint with a tokenizer.

    Returns `REFUSED` where two ranks cannot divide a layer.
    """
    args = EngineArgs(
        model=str(folder),
        dtype="float32",
        kv_cache_memory_bytes=16 << 20,
        max_num_batched_tokens=CHUNKED.max_num_batched_tokens,
        tensor_parallel_size=2,
        cpu_kernels="torch" if kernels == "torch" else "auto",
        batch_invariant=kernels == BATCH_INVARIANT,
    )
    try:
        llm = LLM.from_engine_args(args)
    except (InvalidConfigError, InvalidModelError) as error:
        if not any(reason in str(error) for reason in UNDIVIDABLE):
            raise
        return REFUSED
    prompts = [list(job.spec.prompt_token_ids) for job in case.jobs]
    max_tokens = case.jobs[0].spec.params.max_tokens
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
    with llm:
        passes = [llm.generate(prompts, params, use_tqdm=False) for _ in range(2)]
    cached = [sum(output.num_cached_tokens or 0 for output in outputs) for outputs in passes]
    assert cached[0] == 0 < cached[1], "the cache was not used as said"
    expected = [job.expected[0] for job in case.jobs]
    found = [[list(output.outputs[0].token_ids) for output in outputs] for outputs in passes]
    return "".join(EQUAL if tokens == expected else DIFFERENT for tokens in found)


def row(name: str) -> list[str]:
    """Return the cells of a checkpoint."""
    producer = json.loads((FIXTURES / name / "expected.json").read_text())["producer"]
    reference, cells = QuantizedReference(FIXTURES / name), []
    case = Case.of(reference, reference.num_tokens)
    with tempfile.TemporaryDirectory() as root:
        folder = copy_with_tokenizer(name, Path(root) / "model")
        for kernels, way in WAYS:
            if way == RANKS:
                cells.append(compare_ranks(case, folder, kernels))
                continue
            passes = [compare(case, kernels, ARRANGEMENTS[way], shape) for shape in (WHOLE, CHUNKED)]
            cells.append(" ".join(passes))
    return [f"`{name}`", f"{producer['package']} {producer['version']}", producer["scheme"], *cells]


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the table of quantized checkpoints.")
    parser.add_argument("--only", nargs="*", choices=CHECKPOINTS, help="write the rows of these alone")
    only = parser.parse_args().only
    torch.set_num_threads(1)  # The models are too small for more.
    is_different = False
    for name in only or CHECKPOINTS:
        cells = row(name)
        print(*cells, flush=True)
        TABLE.write(cells)
        is_different |= any(DIFFERENT in cell for cell in cells)
    return int(is_different)


if __name__ == "__main__":
    sys.exit(main())
