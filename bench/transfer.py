"""Measures how fast each transport moves KV blocks, beside the fastest way to move as many bytes here.

    python -m bench.transfer [--mib 1 16 256] [--repeats 7] [--transports shared_memory tcp nixl]
    python -m bench.transfer --profile --mib 1 --pieces blocks --transports tcp nixl
    python -m bench.transfer --checksums

The producer is a process of its own. The copy and its yardsticks take turns, and the best rate of each
counts, which other work on the machine disturbs least. *Blocks* are whole blocks, 1 MiB each, that do not lie
side by side at the consumer; *layers* are single layers of such blocks, each 32 KiB, as if blocks were stored
layer by layer. Yardsticks:

- memcpy: torch's `copy_` of as many bytes, in one piece, in this process;
- raw NIXL: one READ of the same pieces, looked after without a pause;
- raw socket: as many bytes over one TCP connection on the loopback, 1 MiB at a time, into one piece of
  memory; a thread at each end, as the connector has it, and no checksums.

Shared memory and TCP compare checksums; `shared_memory, unchecked` is the same without. With `--profile` the
consumer's functions are printed instead, by their own time under cProfile; with `--checksums` the rates of
checksums alone, of whole blocks and of heads, which ranks with pools of their own take.
"""

from __future__ import annotations

import cProfile
import itertools
import multiprocessing
import os
import pstats
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Final

import numpy as np
import torch
import xxhash

from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.ranks.transfer_plan import BlockPart
from baton_core.sessions.router_messages import KVSource
from baton_core.worker.worker_events import BlockPull, Pull, PullDone
from baton_kernels.cpu.selection import select_copy
from baton_kv.block_runs import merge_runs
from baton_kv.connector import KVConnector, VerifiesBy
from baton_kv.curve import CurveKeys
from baton_kv.description import decode_description
from baton_kv.head_sums import HeadSums
from baton_kv.in_process import InProcessConnector, InProcessRegistry
from baton_kv.nixl import NixlConnector
from baton_kv.nixl_agent import NixlAgent
from baton_kv.nixl_consumer import make_regions
from baton_kv.nixl_library import find_build, load_nixl
from baton_kv.nixl_messages import ReadingBegan, decode_address, encode_notice
from baton_kv.pool_bytes import open_pool
from baton_kv.row_copies import copy_rows
from baton_kv.shared_memory import SharedMemoryConnector
from baton_kv.tcp import TcpConnector
from baton_kv.transfer_thread import TransferThread
from baton_kv.transport import Listen
from baton_service.tcp import connect_to, listen_at
from bench.command_line import make_parser

PRODUCER: Final = "producer"
MIB: Final = 1 << 20
BLOCK: Final = KVSpec(num_layers=32, num_kv_heads=2, head_dim=128, block_size=32, dtype="bfloat16")
LAYER: Final = KVSpec(num_layers=1, num_kv_heads=2, head_dim=128, block_size=32, dtype="bfloat16")
PIECES: Final = {"blocks": BLOCK, "layers": LAYER}


class UncheckedSharedMemory(SharedMemoryConnector):
    """Shared memory without checksums, to measure their cost."""

    capabilities = replace(SharedMemoryConnector.capabilities, verifies_by=VerifiesBy.CONFIRMATION)


MakeConnector = Callable[[KVSpec, int], KVConnector]
COPY: Final = select_copy() or copy_rows
TRANSPORTS: Final[dict[str, MakeConnector]] = {
    "shared_memory": partial(SharedMemoryConnector, copy=COPY),
    "shared_memory, unchecked": partial(UncheckedSharedMemory, copy=COPY),
    "tcp": TcpConnector,
    "nixl": NixlConnector,
    "nixl, UCX_TLS=tcp": NixlConnector,
}
CURVE: Final = "tcp, CURVE"
PRODUCERS: Final[dict[str, MakeConnector]] = {
    **TRANSPORTS,
    CURVE: lambda spec, epoch: TcpConnector(spec, epoch, Listen(curve=CurveKeys.make())),
}
"""A producer chooses the encryption; `bench.transfer_encryption` measures it."""
IN_PROCESS: Final = "in_process"
SHOWN: Final = 12
TURN_WITHIN_S: Final = 600.0
"""The raw socket waits so long for its turn at most."""


def produce(pipe: Connection, transport: str, spec: KVSpec, num_blocks: int) -> None:
    """Serve a pool until the other end of the pipe is closed."""
    connector = PRODUCERS[transport](spec, 1)
    connector.allocate(num_blocks).normal_()
    checksums = connector.compute_checksums(range(num_blocks))
    thread = TransferThread(connector, lambda results: None)
    thread.start()
    pipe.send((connector.describe(), checksums))
    pipe.recv()
    thread.close(5.0)


@contextmanager
def producer_process(
    transport: str, spec: KVSpec, num_blocks: int
) -> Iterator[tuple[bytes, tuple[int | None, ...], int]]:
    """A producer process; yields its description, its checksums and its process id."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=produce, args=(theirs, transport, spec, num_blocks), daemon=True)
    process.start()
    try:
        description, checksums = ours.recv()
        assert process.pid is not None
        yield description, checksums, process.pid
    finally:
        ours.send(None)
        process.join()


@dataclass(frozen=True, slots=True)
class Consumer:
    """Connected to a producer, with a pull for all of its blocks."""

    connector: KVConnector
    pool: torch.Tensor
    pull: Pull
    description: bytes
    producer_pid: int

    def run(self) -> PullDone:
        self.connector.pull(self.pull)
        while not (outcomes := self.connector.poll()):
            self.connector.wait()
        assert outcomes[0].error == "", outcomes[0].error
        return outcomes[0]


def connect(
    make: MakeConnector,
    spec: KVSpec,
    description: bytes,
    checksums: tuple[int | None, ...],
    producer_pid: int,
) -> Consumer:
    num_blocks = len(checksums)
    connector = make(spec, 1)
    pool = connector.allocate(num_blocks)
    pool.fill_(1.0)
    connector.connect(PRODUCER, description)
    blocks = tuple(
        BlockPull(remote_block_id=number, local_block_id=num_blocks - 1 - number, checksum=checksum)
        for number, checksum in enumerate(checksums)
    )
    source = KVSource(worker_id=PRODUCER, epoch=1, peer_address="", kv_description=b"")
    pull = Pull(pull_id=1, source=source, blocks=blocks)
    return Consumer(connector, pool, pull, description, producer_pid)


@contextmanager
def pulling(transport: str, spec: KVSpec, num_blocks: int) -> Iterator[Consumer]:
    with ExitStack() as exits:
        if transport == IN_PROCESS:
            registry = InProcessRegistry()
            producer = InProcessConnector(spec, 1, registry)
            exits.callback(producer.close)
            producer.allocate(num_blocks).normal_()
            consumer = connect(
                lambda spec, epoch: InProcessConnector(spec, epoch, registry, COPY),
                spec,
                producer.describe(),
                producer.compute_checksums(range(num_blocks)),
                os.getpid(),
            )
        else:
            described = exits.enter_context(producer_process(transport, spec, num_blocks))
            consumer = connect(TRANSPORTS.get(transport, TcpConnector), spec, *described)
        exits.callback(consumer.connector.close)
        yield consumer


# --- yardsticks ---


class Memcpy:
    def __init__(self, num_bytes: int) -> None:
        self._source = torch.ones(num_bytes, dtype=torch.uint8)
        self._target = torch.zeros(num_bytes, dtype=torch.uint8)

    def run(self) -> None:
        self._target.copy_(self._source)


class RawNixl:
    """One READ of the pieces of a pull, between agents of its own."""

    def __init__(self, consumer: Consumer, spec: KVSpec, exits: ExitStack) -> None:
        address = decode_address(decode_description(consumer.description, spec).address("nixl"))
        self._agent = NixlAgent(load_nixl(), consumer.pool)
        exits.callback(self._agent.close)
        self._remote_name = self._agent.add(address.metadata)
        self._memory = address.memory
        runs = merge_runs(consumer.pull.blocks, len(consumer.pull.blocks))
        size = spec.block_bytes
        self._local = make_regions(runs.local, runs.num_blocks, consumer.pool.data_ptr(), size, 0)
        self._remote = make_regions(runs.remote, runs.num_blocks, address.base, size, address.device)
        self._num_runs = 0

    def run(self) -> None:
        self._num_runs += 1
        self._agent.notify(self._remote_name, encode_notice(ReadingBegan(self._num_runs)))
        read = self._agent.read(self._local, self._remote_name, self._remote, self._memory)
        while not read.is_over():
            pass
        read.release()


def send_bytes(port: int, num_bytes: int) -> None:
    """Send as many bytes for each byte that comes."""
    chunk = bytes(MIB)
    with connect_to(("127.0.0.1", port), TURN_WITHIN_S) as connection:
        while connection.recv(1):
            for _ in range(num_bytes // MIB):
                connection.sendall(chunk)


class RawSocket:
    def __init__(self, num_bytes: int, exits: ExitStack) -> None:
        self._target = np.ones(num_bytes, np.uint8)
        with listen_at("127.0.0.1", 0) as server:
            context = multiprocessing.get_context("spawn")
            port = server.getsockname()[1]
            process = context.Process(target=send_bytes, args=(port, num_bytes), daemon=True)
            process.start()
            exits.callback(process.join)
            self._connection, _ = server.accept()
        exits.callback(self._connection.close)

    def run(self) -> None:
        self._connection.send(b"x")
        rest = memoryview(self._target)
        while rest:
            rest = rest[self._connection.recv_into(rest) :]


# --- measuring ---


@dataclass(slots=True)
class Rates:
    """GB/s of what took turns."""

    num_bytes: int
    by_name: dict[str, list[float]] = field(default_factory=dict)

    def measure(self, name: str, run: Callable[[], object]) -> None:
        began = time.perf_counter()
        run()
        self.by_name.setdefault(name, []).append(self.num_bytes / (time.perf_counter() - began) / 1e9)

    def best(self, name: str) -> float:
        return max(self.by_name[name])


def compare(transport: str, pieces: str, mib: int, repeats: int) -> str:
    """Measure one row of the table."""
    spec, num_bytes = PIECES[pieces], mib * MIB
    if transport.endswith("UCX_TLS=tcp"):
        os.environ["UCX_TLS"] = "tcp"  # UCX reads it for each agent
    try:
        with ExitStack() as exits:
            consumer = exits.enter_context(pulling(transport, spec, num_bytes // spec.block_bytes))
            runs = {"copy": consumer.run, "memcpy": Memcpy(num_bytes).run}
            if transport == "tcp":
                runs["raw socket"] = RawSocket(num_bytes, exits).run
            elif transport.startswith("nixl"):
                runs["raw NIXL"] = RawNixl(consumer, spec, exits).run
            rates = Rates(num_bytes)
            for run in runs.values():
                run(), run()  # touches all memory, and meets the other end
            for _ in range(repeats):
                for name, run in runs.items():
                    rates.measure(name, run)
    finally:
        os.environ.pop("UCX_TLS", None)
    copy, memcpy = rates.best("copy"), rates.best("memcpy")
    cells = [transport, pieces, f"{mib} MiB", f"{copy:.2f}", f"{memcpy:.2f}", f"{copy / memcpy:.0%}"]
    for name in list(runs)[2:]:
        cells.append(f"{name} {rates.best(name):.2f}: {copy / rates.best(name):.0%}")
    return "| " + " | ".join(cells) + (" |" if len(cells) == 7 else " | |")


def profile(transport: str, pieces: str, mib: int, repeats: int) -> None:
    """Print where the consumer's time goes; the producer is another process."""
    spec = PIECES[pieces]
    with pulling(transport, spec, mib * MIB // spec.block_bytes) as consumer, cProfile.Profile() as measured:
        for _ in range(repeats):
            consumer.run()
    print(f"{transport}, {pieces}, {mib} MiB, {repeats} pulls")
    pstats.Stats(measured).sort_stats("tottime").print_stats(SHOWN)


def compare_checksums(repeats: int) -> str:
    """Return the rates of both kinds of checksum as a line of a table."""
    pool = open_pool(torch.randint(256, (16, BLOCK.block_bytes), dtype=torch.uint8))
    cells = BlockPart(range(BLOCK.num_layers), range(BLOCK.num_kv_heads)).cells(BLOCK)
    rates, heads = Rates(16 * BLOCK.block_bytes), HeadSums(pool, cells)
    for _ in range(repeats):
        rates.measure("blocks", lambda: [xxhash.xxh3_64_intdigest(pool.block(one)) for one in range(16)])
        rates.measure("heads", lambda: [heads.of(one) for one in range(16)])
    return f"| {rates.best('blocks'):.2f} | {rates.best('heads'):.2f} |"


def main() -> None:
    names = [IN_PROCESS, *TRANSPORTS]
    parser = make_parser(__doc__)
    parser.add_argument("--mib", type=int, nargs="+", default=[1, 16, 256])
    parser.add_argument("--pieces", choices=PIECES, nargs="+", default=list(PIECES))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--transports", choices=names, nargs="+", default=names)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--checksums", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.checksums:
        print("| whole blocks, GB/s | heads, GB/s |\n|---|---|")
        print(compare_checksums(args.repeats))
        return
    if args.profile:
        for transport, pieces, mib in itertools.product(args.transports, args.pieces, args.mib):
            profile(transport, pieces, mib, args.repeats)
        return
    print("| transport | pieces | size | GB/s | memcpy, GB/s | of memcpy | of its own |")
    print("|---|---|---|---|---|---|---|")
    for transport in args.transports:
        if transport.startswith("nixl") and find_build() is None:
            print(f"| {transport} | not installed | | | | | |")
            continue
        for pieces in args.pieces:
            for mib in args.mib:
                print(compare(transport, pieces, mib, args.repeats), flush=True)


if __name__ == "__main__":
    main()
