"""The links between ranks: who exchanges tensors with whom, and by which means."""

from __future__ import annotations

import mmap
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final

from torch._C._distributed_c10d import TCPStore

from baton_core.ranks.rank_layout import ParallelSizes, RankPlace
from baton_core.worker.step_plan import StepPlan
from baton_engine.ranks.ranks import Ranks, nobody
from baton_kernels.cpu.library import CpuLibrary
from baton_kernels.cpu.selection import load_build
from baton_kernels.cpu.shared_collectives import SharedCollectives, abort, shared_bytes
from baton_kernels.interface.collectives import Alone, Collectives
from baton_kernels.reference.torch_collectives import TorchCollectives
from baton_service.tcp import listen_at

WITHIN_S: Final = 60.0
"""Time for a rank to come to an exchange: the others may compute a long prompt meanwhile."""


class Links(ABC):
    """The means by which ranks exchange tensors."""

    def __init__(self, sizes: ParallelSizes) -> None:
        self._sizes = sizes

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

    @abstractmethod
    def abort(self) -> None:
        """End all waits that can be ended: a rank is lost."""

    @abstractmethod
    def _link(self, group: int, rank: int, size: int) -> Collectives:
        """Return the exchanges of a group of several ranks, all of whom call this."""

    def _open(self, group: int, rank: int, size: int) -> Collectives:
        return Alone() if size == 1 else self._link(group, rank, size)


class SharedLinks(Links):
    """Exchanges by the C++ kernels through memory that all ranks map: a `descriptor`, or new memory."""

    def __init__(self, sizes: ParallelSizes, library: CpuLibrary, descriptor: int = -1) -> None:
        super().__init__(sizes)
        groups = [sizes.num_ranks, *[sizes.tensor] * sizes.pipeline, *[sizes.pipeline] * sizes.tensor]
        *self._offsets, num_bytes = accumulate(map(shared_bytes, groups), initial=0)
        self._library = library
        self.descriptor = os.memfd_create("baton-ranks", os.MFD_CLOEXEC) if descriptor < 0 else descriptor
        if descriptor < 0:
            os.ftruncate(self.descriptor, num_bytes)
        self._memory = mmap.mmap(self.descriptor, num_bytes)

    def close_descriptor(self) -> None:
        """Close the descriptor once nobody else is to open the memory."""
        os.close(self.descriptor)

    def abort(self) -> None:
        for offset in self._offsets:
            abort(self._memory, offset)

    def _link(self, group: int, rank: int, size: int) -> Collectives:
        return SharedCollectives(
            self._library, self._memory, self._offsets[group], rank, size, deadline_s=WITHIN_S
        )


class StoreLinks(Links):
    """Exchanges by gloo between ranks that meet at a store.

    Args:
        store: host and port of the store.
        host: address of this machine at which other ranks reach this one.
        listener: the leader's listening socket at the store's address.
    """

    def __init__(
        self, sizes: ParallelSizes, store: tuple[str, int], host: str, listener: socket.socket | None = None
    ) -> None:
        super().__init__(sizes)
        self.address = store
        self._host = host
        listening: dict[str, Any] = {} if listener is None else {"master_listen_fd": listener.detach()}
        self._store = TCPStore(*store, is_master=bool(listening), wait_for_workers=False, **listening)

    @classmethod
    def lead(cls, sizes: ParallelSizes, host: str) -> StoreLinks:
        """Make the leader's, whose store listens at `host` alone."""
        listener = listen_at(host, 0)
        return cls(sizes, (host, listener.getsockname()[1]), host, listener)

    def abort(self) -> None:
        """Do nothing: waits end with the connection to a killed rank."""

    def _link(self, group: int, rank: int, size: int) -> Collectives:
        return TorchCollectives(
            self._store, f"group-{group}", rank, size, host=self._host, deadline_s=WITHIN_S
        )


def lead_links(sizes: ParallelSizes, cpu_kernels: str, host: str, *, shares_memory: bool) -> Links:
    """Make a leader's links: shared memory, or gloo where there is none or no C++ kernels."""
    library = load_build(cpu_kernels) if shares_memory else None
    return StoreLinks.lead(sizes, host) if library is None else SharedLinks(sizes, library)
