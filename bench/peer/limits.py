"""Measures this machine's memory bandwidth and peak multiplication rate, in a process without an engine.

    python -m bench.peer.limits NUM_BYTES DTYPE

Prints JSON: the fields of `figures.Limits`.
"""

from __future__ import annotations

import json
import os
import time
from typing import Final

from baton import PASSIVE_OPENMP

os.environ.setdefault(*PASSIVE_OPENMP)

import torch

from bench.command_line import make_parser
from bench.cpu_step import measure_bandwidth

SIZE: Final = 1536
REPEATS: Final = 6


def measure_flops(dtype: torch.dtype) -> float:
    """Return operations per second of the product of square matrices, the best of a few."""
    left, right = torch.randn(2, SIZE, SIZE).to(dtype)
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        torch.mm(left, right)
        times.append(time.perf_counter() - start)
    return 2 * SIZE**3 / min(times)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("num_bytes", type=int)
    parser.add_argument("dtype")
    arguments = parser.parse_args()
    num_bytes, dtype = arguments.num_bytes, getattr(torch, arguments.dtype)
    flops = max(measure_flops(dtype), measure_flops(torch.float32))
    print(json.dumps({"bytes_per_s": measure_bandwidth(num_bytes), "flops": flops}))


if __name__ == "__main__":
    main()
