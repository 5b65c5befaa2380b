"""What encryption costs a transfer of KV blocks over TCP: one holder and one puller, each a process.

    python bench/transfer_encryption.py --block-kib 256 --mib 256 --repeats 7

Plain and by CURVE in turn, with checksums, as in service: GB/s and the CPU time of both ends for a GB, each
the median over orders of that size. CPU time says something on a busy machine too.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

from baton_core.blocks.kv_spec import KVSpec
from baton_kv.connector import BlockCopy, PullOrder
from baton_kv.curve import CurveKeys
from baton_kv.tcp import TcpConnector
from baton_kv.transfer_thread import TransferThread
from baton_kv.transport import Listen

_HOLDER: Final = "holder"
_KIB: Final = 1024


def hold(pipe: Connection, spec: KVSpec, num_blocks: int, *, is_encrypted: bool) -> None:
    """Serve a pool, and tell the CPU time whenever it is asked, until the question is False."""
    connector = TcpConnector(spec, 1, Listen(curve=CurveKeys.make() if is_encrypted else None))
    connector.allocate(num_blocks).normal_()
    checksums = connector.seal(range(num_blocks))
    thread = TransferThread(connector, lambda results: None)
    thread.start()
    pipe.send((connector.describe(), checksums))
    while pipe.recv():
        pipe.send(time.process_time())
    thread.close(5.0)


@dataclass(frozen=True, slots=True)
class Puller:
    """Connected to a holder of its own, with an order for all of its blocks."""

    connector: TcpConnector
    order: PullOrder
    holder: Connection

    def measure(self) -> tuple[float, float]:
        """Execute the order; returns GB/s, and CPU seconds for a GB."""
        before_s = self._cpu_s()
        self.connector.pull(self.order)
        while not (outcomes := self.connector.poll()):
            self.connector.wait(1.0)
        (outcome,) = outcomes
        assert outcome.error is None, outcome.error
        num_gigabytes = outcome.num_bytes / 1e9
        return num_gigabytes / outcome.seconds, (self._cpu_s() - before_s) / num_gigabytes

    def _cpu_s(self) -> float:
        self.holder.send(True)
        return time.process_time() + float(self.holder.recv())


@contextmanager
def pulling(spec: KVSpec, num_blocks: int, *, is_encrypted: bool) -> Iterator[Puller]:
    ours, theirs = multiprocessing.Pipe()
    arguments = (theirs, spec, num_blocks)
    holder = multiprocessing.Process(target=hold, args=arguments, kwargs={"is_encrypted": is_encrypted})
    holder.start()
    description, checksums = ours.recv()
    connector = TcpConnector(spec, 2)
    connector.allocate(num_blocks)
    connector.connect(_HOLDER, description)
    copies = tuple(
        BlockCopy(remote_block_id=number, local_block_id=number, checksum=checksum)
        for number, checksum in enumerate(checksums)
    )
    try:
        yield Puller(connector, PullOrder(pull_id=1, source=_HOLDER, epoch=1, copies=copies), ours)
    finally:
        connector.close()
        ours.send(False)
        holder.join()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--block-kib", type=int, default=256)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    # Keys and values of 32 tokens, one layer, 128 values of two bytes: 16 KiB for each head.
    spec = KVSpec(
        num_layers=1, num_kv_heads=args.block_kib // 16, head_dim=128, block_size=32, dtype="bfloat16"
    )
    num_blocks = args.mib * _KIB // args.block_kib
    with (
        pulling(spec, num_blocks, is_encrypted=False) as plain,
        pulling(spec, num_blocks, is_encrypted=True) as encrypted,
    ):
        plain.measure(), encrypted.measure()  # touches all memory
        rounds = [(plain.measure(), encrypted.measure()) for _ in range(args.repeats)]
    for number, name in enumerate(("plain", "CURVE")):
        rate, cpu_s = (statistics.median(one[number][kind] for one in rounds) for kind in (0, 1))
        print(f"{name}: {rate:.2f} GB/s, {cpu_s:.2f} s of CPU time for a GB")


if __name__ == "__main__":
    main()
