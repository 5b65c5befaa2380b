"""The links between the ranks of one machine: who exchanges tensors with whom, and by which means."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from itertools import accumulate
from typing import Final

from torch._C._distributed_c10d import TCPStore

from baton_core.ranks.rank_layout import ParallelSizes, RankPlace
from baton_core.worker.step_plan import StepPlan
from baton_engine.ranks.ranks import Ranks, nobody
from baton_kernels.cpu.selection import load_build
from baton_kernels.cpu.shared_collectives import SharedCollectives, abort, shared_bytes
from baton_kernels.interface.collectives import Alone, Collectives
from baton_kernels.reference.torch_collectives import TorchCollectives

WITHIN_S: Final = 60.0
"""Time for a rank to come to an exchange: the others may compute a long prompt meanwhile."""
_HOST: Final = "127.0.0.1"


class Links:
    """The means by which ranks exchange tensors: shared memory, or gloo without the C++ kernels.

    The leader makes it, and the others open what it passes on: `descriptor` and `port`.
    """

    def __init__(self, sizes: ParallelSizes, cpu_kernels: str, descriptor: int = -1, port: int = 0) -> None:
        is_leading = descriptor < 0
        groups = [sizes.num_ranks, *[sizes.tensor] * sizes.pipeline, *[sizes.pipeline] * sizes.tensor]
        *self._offsets, num_bytes = accumulate(map(shared_bytes, groups), initial=0)
        self._sizes = sizes
        self._library = load_build(cpu_kernels)
        self.descriptor = os.memfd_create("baton-ranks", os.MFD_CLOEXEC) if is_leading else descriptor
        if is_leading:
            os.ftruncate(self.descriptor, num_bytes)
        self._memory = mmap.mmap(self.descriptor, num_bytes)
        self._store: TCPStore | None = None
        if self._library is None:
            self._store = TCPStore(_HOST, port, is_master=is_leading, wait_for_workers=False)
        self.port = self._store.port if self._store else 0

    def open(self, place: RankPlace, announce: Callable[[StepPlan], None] = nobody) -> Ranks:
        """Return a rank's links to the others."""
        sizes = self._sizes
        return Ranks(
            place=place,
            tensor=self._open(1 + place.stage, place.tensor_rank, sizes.tensor),
            pipeline=self._open(1 + sizes.pipeline + place.tensor_rank, place.stage, sizes.pipeline),
            whole=self._open(0, place.rank, sizes.num_ranks),
            announce=announce,
        )

    def close_descriptor(self) -> None:
        """Close the descriptor once nobody else is to open the memory."""
        os.close(self.descriptor)

    def abort(self) -> None:
        """End all waits in shared memory, now and later: a rank is lost."""
        for offset in self._offsets:
            abort(self._memory, offset)

    def _open(self, group: int, rank: int, size: int) -> Collectives:
        if size == 1:
            return Alone()
        if self._store is not None:
            return TorchCollectives(self._store, f"group-{group}", rank, size, deadline_s=WITHIN_S)
        assert self._library is not None, "there is a store without it"
        return SharedCollectives(
            self._library, self._memory, self._offsets[group], rank, size, deadline_s=WITHIN_S
        )
