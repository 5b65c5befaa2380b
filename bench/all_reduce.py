"""Measures the sum over ranks of one machine: shared memory beside gloo's own, in turns.

    python -m bench.all_reduce --ranks 2 --repeats 500

Each rank is a process with one thread. Times are those of the first, from a call's start to its end, in
microseconds; the ranks come together before each call.
"""

from __future__ import annotations

import argparse
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroupGloo, TCPStore

from baton_kernels.cpu.selection import load_build
from baton_kernels.cpu.shared_collectives import SharedCollectives, shared_bytes
from bench.command_line import make_parser

SIZES_KIB = (8, 32, 128, 512, 2048)
DTYPES = (torch.float32, torch.bfloat16)
WITHIN_S = 120.0
HOST = "127.0.0.1"


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=500)
    for name in ("--rank", "--memory", "--port"):
        parser.add_argument(name, type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        measure_rank(options.rank, options.ranks, options.repeats, options.memory, options.port)
        return
    memory = os.memfd_create("baton-bench")
    os.ftruncate(memory, shared_bytes(options.ranks))
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    given = ["--ranks", options.ranks, "--repeats", options.repeats, "--memory", memory, "--port", store.port]
    command = [sys.executable, "-m", "bench.all_reduce", *map(str, given)]
    peers = [
        subprocess.Popen([*command, "--rank", str(rank)], pass_fds=[memory])
        for rank in range(1, options.ranks)
    ]
    measure_rank(0, options.ranks, options.repeats, memory, store.port)
    for peer in peers:
        peer.wait(WITHIN_S)


def measure_rank(rank: int, size: int, repeats: int, memory: int, port: int) -> None:
    """Take one rank's part; the first one prints the table."""
    torch.set_num_threads(1)
    library = load_build()
    if library is None:
        raise SystemExit("this machine has no C++ kernels")
    mapped = mmap.mmap(memory, shared_bytes(size))
    shared = SharedCollectives(library, mapped, 0, rank, size, deadline_s=WITHIN_S)
    store = TCPStore(HOST, port, is_master=False, wait_for_workers=False)
    gloo = ProcessGroupGloo(store, rank, size, timedelta(seconds=WITHIN_S))
    if rank == 0:
        print(f"{'dtype':10}{'KiB':>6}{'shared p50':>12}{'p95':>9}{'gloo p50':>12}{'p95':>9}")

    def sum_by_gloo(x: Tensor) -> None:
        gloo.allreduce(x).wait()

    for dtype in DTYPES:
        for kib in SIZES_KIB:
            x = torch.zeros((kib << 10) // dtype.itemsize, dtype=dtype)
            own = measure(lambda x=x: shared.all_reduce(x), shared, repeats)
            other = measure(lambda x=x: sum_by_gloo(x), shared, repeats)
            if rank == 0:
                print(f"{str(dtype)[6:]:10}{kib:6}{own[0]:12.1f}{own[1]:9.1f}{other[0]:12.1f}{other[1]:9.1f}")


def measure(call: Callable[[], object], group: SharedCollectives, repeats: int) -> tuple[float, float]:
    """Return the median and the 95th percentile, in microseconds."""
    times: list[float] = []
    for _ in range(repeats):
        group.all_gather(torch.zeros(1))
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    median, high = torch.quantile(torch.tensor(times), torch.tensor([0.5, 0.95])).tolist()
    return median, high


if __name__ == "__main__":
    main()
