"""Compares every quantized checkpoint of the tests with a float reference, in the ways a cluster can run it.

Writes the result as a table into docs/models.md:

    python -m tools.quantized_matrix

The checkpoints were written by the packages that the table names. The reference is Transformers' model in
float32, with the values for which the codes stand and inputs rounded as the checkpoint says. Exits with 1 if
any token differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import product
from typing import Final

import torch

from baton_core.requests.sampling_params import SamplingParams
from baton_core.sessions.router_messages import RequestSpec
from tests.quantized_reference import CHECKPOINTS, FIXTURES, QuantizedReference
from tests.reference import Job
from tools.model_matrix import (
    ARRANGEMENTS,
    BATCH_INVARIANT,
    CHUNKED,
    DIFFERENT,
    DOCUMENT,
    KERNELS,
    WHOLE,
    Case,
    compare,
    describe_run,
    fill_document,
)

BEGIN: Final = "<!-- written by tools/quantized_matrix.py: begin -->"
END: Final = "<!-- written by tools/quantized_matrix.py: end -->"
WAYS: Final = tuple(product((*KERNELS, BATCH_INVARIANT), ("together", "shared memory")))
PROMPT_LENS: Final = (33, 70, 200)


def draw(name: str) -> Case:
    """Return a checkpoint with requests and the tokens of its reference."""
    folder = FIXTURES / name
    reference = QuantizedReference(folder)
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=reference.num_tokens, ignore_eos=True)
    drawn = reference.draw_all_greedy([(n, (n % 97,)) for n in PROMPT_LENS], reference.num_tokens)
    return Case(
        folder,
        tuple(
            Job(RequestSpec(request_id="", prompt_token_ids=prompt, params=params), [tokens])
            for prompt, tokens in drawn
        ),
    )


def row(name: str) -> list[str]:
    """Return the cells of a checkpoint."""
    producer = json.loads((FIXTURES / name / "expected.json").read_text())["producer"]
    case = draw(name)
    cells = [
        " ".join(compare(case, kernels, ARRANGEMENTS[arrangement], shape) for shape in (WHOLE, CHUNKED))
        for kernels, arrangement in WAYS
    ]
    return [f"`{name}`", f"{producer['package']} {producer['version']}", producer["scheme"], *cells]


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the table of quantized checkpoints.")
    parser.add_argument("--only", nargs="*", choices=CHECKPOINTS, help="compare these and write nothing")
    only = parser.parse_args().only
    torch.set_num_threads(1)  # The models are too small for more.
    heading = ["checkpoint", "written by", "scheme", *(", ".join(way) for way in WAYS)]
    rows = [heading, ["---"] * len(heading)]
    for name in only or CHECKPOINTS:
        rows.append(row(name))
        print(*rows[-1], flush=True)
    if not only:
        table = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
        made = describe_run("python -m tools.quantized_matrix")
        DOCUMENT.write_text(fill_document(DOCUMENT.read_text(), f"{made}\n\n{table}", BEGIN, END))
    return int(any(DIFFERENT in cell for cells in rows for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
