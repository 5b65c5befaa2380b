"""The backends under test, and a holder and a puller of each.

Both are run by the calling thread: a step of the puller is one of its holder as well.
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

from baton_core.blocks.kv_spec import KVSpec
from baton_kernels.cpu_selection import select_copy
from baton_kv.auto import AutoConnector
from baton_kv.connector import BlockCopy, KVConnector, PullOrder, PullOutcome
from baton_kv.in_process import InProcessConnector, InProcessRegistry
from baton_kv.nixl import NixlConnector
from baton_kv.nixl_library import find_build
from baton_kv.row_copies import CopyRows, copy_rows
from baton_kv.shared_memory import SharedMemoryConnector
from baton_kv.tcp import TcpConnector

HOLDER = "prefill-0"
SMALL = KVSpec(num_layers=2, num_kv_heads=2, head_dim=4, block_size=4, dtype="bfloat16")
"""Blocks of 256 bytes."""
LARGE = KVSpec(num_layers=8, num_kv_heads=8, head_dim=64, block_size=32, dtype="float32")
"""Blocks of 1 MiB: four fill a step, or a chunk."""
MANY: Final = 32
"""Large blocks that are more than a puller takes in when their holder goes away after the first few."""
_STEP_S: Final = 0.002
_DEADLINE_S: Final = 20.0

MakeConnector = Callable[[KVSpec, int], KVConnector]


def make_in_process(copy: CopyRows = copy_rows) -> MakeConnector:
    registry = InProcessRegistry()
    return lambda spec, epoch: InProcessConnector(spec, epoch, registry, copy)


def native_copy() -> CopyRows:
    """What workers copy with."""
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

    def poll(self) -> list[PullOutcome]:
        """One step of every worker of the site; only this one has orders."""
        for neighbour in self.neighbours:
            if neighbour is not self and not neighbour.is_stuck:
                assert neighbour.connector.poll() == []
        self.connector.wait(_STEP_S)
        return self.connector.poll()

    def collect(self, num_outcomes: int) -> list[PullOutcome]:
        """Run until so many orders have ended."""
        outcomes: list[PullOutcome] = []
        deadline = time.monotonic() + _DEADLINE_S
        while len(outcomes) < num_outcomes:
            assert time.monotonic() < deadline, f"{len(outcomes)} of {num_outcomes} orders have ended"
            outcomes += self.poll()
        assert len(outcomes) == num_outcomes
        return outcomes

    def run_until_written(self, block_id: int) -> None:
        """Run until a block has changed, while no order ends."""
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
        """A holder, and a puller that is connected to it under the name `HOLDER`."""
        holder = self.worker(spec, epoch=epoch, num_blocks=num_blocks)
        puller = self.worker(spec, num_blocks=max(16, num_blocks))
        puller.connector.connect(HOLDER, holder.connector.describe())
        return holder, puller


@contextmanager
def open_site(backend: str) -> Iterator[Site]:
    with ExitStack() as exits:
        yield Site(BACKENDS[backend](), exits)


def make_order(
    holder: Worker, block_map: Mapping[int, int], *, pull_id: int = 1, epoch: int = 1, source: str = HOLDER
) -> PullOrder:
    """An order for `block_map` (local block to remote block) with the holder's checksums."""
    checksums = holder.connector.seal(tuple(block_map.values()))
    copies = tuple(
        BlockCopy(remote_block_id=remote, local_block_id=local, checksum=checksum)
        for (local, remote), checksum in zip(block_map.items(), checksums, strict=True)
    )
    return PullOrder(pull_id=pull_id, source=source, epoch=epoch, copies=copies)


def run_pull(worker: Worker, order: PullOrder) -> PullOutcome:
    """Execute one order to its end."""
    worker.connector.pull(order)
    (outcome,) = worker.collect(1)
    assert outcome.pull_id == order.pull_id
    return outcome
