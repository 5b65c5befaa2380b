"""The backends under test, and a holder and a puller of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch

from baton_core.kv_spec import KVSpec
from baton_kv.connector import BlockCopy, KVConnector, PullOrder, PullOutcome
from baton_kv.in_process import InProcessConnector, InProcessRegistry
from baton_kv.shared_memory import SharedMemoryConnector

HOLDER = "prefill-0"
SMALL = KVSpec(num_layers=2, num_kv_heads=2, head_dim=4, block_size=4, dtype="bfloat16")
"""Blocks of 256 bytes."""
LARGE = KVSpec(num_layers=8, num_kv_heads=8, head_dim=64, block_size=32, dtype="float32")
"""Blocks of 1 MiB: four fill a step."""

MakeConnector = Callable[[KVSpec, int], KVConnector]


def make_in_process() -> MakeConnector:
    registry = InProcessRegistry()
    return lambda spec, epoch: InProcessConnector(spec, epoch, registry)


def make_shared_memory() -> MakeConnector:
    return SharedMemoryConnector


BACKENDS = {"in_process": make_in_process, "shared_memory": make_shared_memory}


@dataclass
class Worker:
    """A connector and its pool."""

    connector: KVConnector
    pool: torch.Tensor

    @property
    def bytes(self) -> torch.Tensor:
        """`[num_blocks, block_bytes] uint8`, the same memory as the pool."""
        return self.pool.flatten(1).view(torch.uint8)


@dataclass
class Site:
    """Makes workers that can reach each other."""

    make: MakeConnector
    exits: ExitStack
    rng: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(7))

    def worker(self, spec: KVSpec = SMALL, *, epoch: int = 1, num_blocks: int = 16) -> Worker:
        """A worker whose pool is filled with random bytes."""
        connector = self.make(spec, epoch)
        self.exits.callback(connector.close)
        worker = Worker(connector, connector.allocate(num_blocks))
        worker.bytes.copy_(torch.randint(0, 256, worker.bytes.shape, generator=self.rng, dtype=torch.uint8))
        return worker

    def pair(self, spec: KVSpec = SMALL, **options: int) -> tuple[Worker, Worker]:
        """A holder, and a puller that is connected to it under the name `HOLDER`."""
        holder, puller = self.worker(spec, **options), self.worker(spec)
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


def run_pull(worker: Worker, order: PullOrder, max_steps: int = 100) -> PullOutcome:
    """Execute one order to its end."""
    worker.connector.pull(order)
    for _ in range(max_steps):
        for outcome in worker.connector.poll():
            assert outcome.pull_id == order.pull_id
            return outcome
    raise AssertionError(f"no outcome after {max_steps} steps")
