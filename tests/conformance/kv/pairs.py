"""The backends under test, and a producer and a consumer of each.

Both are run by the calling thread: a step of the consumer is one of its producer as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pytest
import torch

from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.worker.worker_events import BlockPull, Pull, PullDone
from baton_kernels.cpu.selection import select_copy
from baton_kv.auto import AutoConnector
from baton_kv.connector import KVConnector, ProducerUnreachableError
from baton_kv.in_process import InProcessConnector, InProcessRegistry
from baton_kv.nixl import NixlConnector
from baton_kv.nixl_library import find_build
from baton_kv.row_copies import CopyRows, copy_rows
from baton_kv.shared_memory import SharedMemoryConnector
from baton_kv.tcp import TcpConnector
from tests.builders import make_source

PRODUCER = "prefill-0"
SMALL = KVSpec(num_layers=2, num_kv_heads=2, head_dim=4, block_size=4, dtype="bfloat16")
"""Blocks of 256 bytes."""
LARGE = KVSpec(num_layers=8, num_kv_heads=8, head_dim=64, block_size=32, dtype="float32")
"""Blocks of 1 MiB: four fill a step, or a chunk."""
MANY: Final = 32
"""Large blocks that are more than a consumer takes in when their producer goes away after the first few."""
_STEP_S: Final = 0.002
_DEADLINE_S: Final = 20.0

MakeConnector = Callable[[KVSpec, int], KVConnector]


def make_in_process(copy: CopyRows = copy_rows) -> MakeConnector:
    registry = InProcessRegistry()
    return lambda spec, epoch: InProcessConnector(spec, epoch, registry, copy)


def native_copy() -> CopyRows:
    """Return the copy function that workers use."""
    copy = select_copy()
    assert copy is not None
    return copy


BACKENDS: dict[str, Callable[[], MakeConnector]] = {
    "in_process": make_in_process,
    "in_process, C++": lambda: make_in_process(native_copy()),
    "shared_memory": lambda: SharedMemoryConnector,
    "shared_memory, C++": lambda: partial(SharedMemoryConnector, copy=native_copy()),
    "tcp": lambda: TcpConnector,
    "auto": lambda: AutoConnector,
    "nixl": lambda: NixlConnector,
}
needs_nixl = pytest.mark.skipif(find_build() is None, reason="NIXL is not installed: pip install baton[nixl]")
BACKEND_PARAMS: Final = [
    pytest.param(name, marks=[needs_nixl] if name == "nixl" else []) for name in BACKENDS
]


@dataclass
class Worker:
    """A connector, its pool, and those of its site."""

    connector: KVConnector
    pool: torch.Tensor
    neighbours: list[Worker]
    is_stuck: bool = False
    """Its thread does nothing any more."""

    @property
    def bytes(self) -> torch.Tensor:
        """`[num_blocks, block_bytes] uint8`, the same memory as the pool."""
        return self.pool.flatten(1).view(torch.uint8)

    def poll(self) -> list[PullDone]:
        """One step of every worker of the site; only this one has pulls."""
        for neighbour in self.neighbours:
            if neighbour is not self and not neighbour.is_stuck:
                assert neighbour.connector.poll() == []
        self.connector.wait(_STEP_S)
        return self.connector.poll()

    def collect(self, num_outcomes: int) -> list[PullDone]:
        """Run until so many pulls have ended."""
        outcomes: list[PullDone] = []
        deadline = time.monotonic() + _DEADLINE_S
        while len(outcomes) < num_outcomes:
            assert time.monotonic() < deadline, f"{len(outcomes)} of {num_outcomes} pulls have ended"
            outcomes += self.poll()
        assert len(outcomes) == num_outcomes
        return outcomes

    def run_until_written(self, block_id: int) -> None:
        """Run until a block has changed, while no pull ends."""
        before = self.bytes[block_id].clone()
        deadline = time.monotonic() + _DEADLINE_S
        while torch.equal(self.bytes[block_id], before):
            assert time.monotonic() < deadline, "nothing arrives"
            assert self.poll() == []


@dataclass
class Site:
    """Makes workers that can reach each other."""

    make: MakeConnector
    exits: ExitStack
    workers: list[Worker] = field(default_factory=list)
    rng: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(7))

    def worker(self, spec: KVSpec = SMALL, *, epoch: int = 1, num_blocks: int = 16) -> Worker:
        """A worker whose pool is filled with random bytes."""
        connector = self.make(spec, epoch)
        self.exits.callback(connector.close)
        worker = Worker(connector, connector.allocate(num_blocks), self.workers)
        worker.bytes.view(torch.int64).random_(generator=self.rng)
        self.workers.append(worker)
        return worker

    def pair(self, spec: KVSpec = SMALL, *, epoch: int = 1, num_blocks: int = 16) -> tuple[Worker, Worker]:
        """A producer, and a consumer that is connected to it under the name `PRODUCER`."""
        producer = self.worker(spec, epoch=epoch, num_blocks=num_blocks)
        consumer = self.worker(spec, num_blocks=max(16, num_blocks))
        consumer.connector.connect(PRODUCER, producer.connector.describe())
        return producer, consumer


@contextmanager
def open_site(backend: str) -> Iterator[Site]:
    with ExitStack() as exits:
        yield Site(BACKENDS[backend](), exits)


def make_pull(
    producer: Worker,
    block_map: Mapping[int, int],
    *,
    pull_id: int = 1,
    epoch: int = 1,
    source: str = PRODUCER,
) -> Pull:
    """A pull for `block_map` (local block to remote block) with the producer's checksums."""
    checksums = producer.connector.compute_checksums(tuple(block_map.values()))
    blocks = tuple(
        BlockPull(remote_block_id=remote, local_block_id=local, checksum=checksum)
        for (local, remote), checksum in zip(block_map.items(), checksums, strict=True)
    )
    return Pull(pull_id=pull_id, source=make_source(source, epoch=epoch), blocks=blocks)


def run_pull(worker: Worker, pull: Pull) -> PullDone:
    """Execute one pull to its end."""
    worker.connector.pull(pull)
    (outcome,) = worker.collect(1)
    assert outcome.pull_id == pull.pull_id
    return outcome


def why_unreachable(consumer: Worker, description: bytes) -> str:
    """Return the error of a pool that cannot be reached, from its connect or else from the first pull."""
    pull = Pull(
        pull_id=1,
        source=make_source(PRODUCER, epoch=1),
        blocks=(BlockPull(remote_block_id=0, local_block_id=0),),
    )
    try:
        consumer.connector.connect(PRODUCER, description)
    except ProducerUnreachableError as error:
        assert run_pull(consumer, pull).failed_block_ids == (0,)
        return str(error)
    outcome = run_pull(consumer, pull)
    assert outcome.failed_block_ids == (0,)
    return outcome.error
