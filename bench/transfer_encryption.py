"""Measures the cost of encrypting KV transfers over TCP: one producer and one consumer, each a process.

    python -m bench.transfer_encryption --block-kib 256 --mib 256 --repeats 7

Plain and by CURVE in turn, with checksums, as in service: GB/s and the CPU time of both ends for a GB, each
the median over pulls of that size. CPU time is meaningful on a busy machine, too.
"""

from __future__ import annotations

import os
import statistics

from baton_core.kv_layout.kv_spec import KVSpec
from bench.command_line import make_parser
from bench.processes import cpu_s
from bench.transfer import CURVE, Consumer, pulling


def measure(consumer: Consumer) -> tuple[float, float]:
    """Execute the pull; returns GB/s, and CPU seconds for a GB."""
    processes = (os.getpid(), consumer.producer_pid)
    before_s = sum(map(cpu_s, processes))
    outcome = consumer.run()
    num_gigabytes = outcome.num_bytes / 1e9
    return num_gigabytes / outcome.seconds, (sum(map(cpu_s, processes)) - before_s) / num_gigabytes


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--block-kib", type=int, default=256)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    # Keys and values of 32 tokens, one layer, 128 values of two bytes: 16 KiB for each head.
    spec = KVSpec(
        num_layers=1, num_kv_heads=args.block_kib // 16, head_dim=128, block_size=32, dtype="bfloat16"
    )
    num_blocks = args.mib * 1024 // args.block_kib
    with pulling("tcp", spec, num_blocks) as plain, pulling(CURVE, spec, num_blocks) as encrypted:
        measure(plain), measure(encrypted)  # touches all memory
        rounds = [(measure(plain), measure(encrypted)) for _ in range(args.repeats)]
    for number, name in enumerate(("plain", "CURVE")):
        rate, cpu_per_gb_s = (statistics.median(one[number][kind] for one in rounds) for kind in (0, 1))
        print(f"{name}: {rate:.2f} GB/s, {cpu_per_gb_s:.2f} s of CPU time for a GB")


if __name__ == "__main__":
    main()
