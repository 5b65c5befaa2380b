"""The links between ranks: who exchanges tensors with whom, and by which means.

Ranks on CPUs exchange through shared memory on one machine, and by gloo between several. Ranks on GPUs do by
NCCL, which needs a GPU for each rank: those that share one exchange by gloo, through the host.
"""

from __future__ import annotations

import math
import mmap
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import accumulate
from typing import Any, Final

import torch
from torch._C._distributed_c10d import TCPStore

from baton_core.ranks.rank_layout import ParallelSizes, RankPlace
from baton_core.worker.step_plan import StepPlan
from baton_engine.ranks.ranks import Ranks, nobody
from baton_kernels.cpu.library import CpuLibrary
from baton_kernels.cpu.selection import load_build
from baton_kernels.cpu.shared_collectives import SharedCollectives, abort, shared_bytes
from baton_kernels.cpu.shared_queue import SharedQueue, queue_bytes
from baton_kernels.interface.collectives import Alone, Collectives, RankLostError
from baton_kernels.reference.torch_collectives import TorchCollectives
from baton_service.tcp import listen_at

WITHIN_S: Final = 60.0
"""Time for a rank to come to an exchange: the others may compute a long prompt meanwhile."""
STAGES_WITHIN_S: Final = 600.0
"""The same in a pipeline: other stages are at steps that the leader comes to when it is stepped again."""


def deadline_s(sizes: ParallelSizes) -> float:
    """Return the time for a rank to come to an exchange."""
    return WITHIN_S if sizes.pipeline == 1 else STAGES_WITHIN_S


def step_deadline_s(sizes: ParallelSizes, device: torch.device) -> float:
    """Return the time for a step: on a GPU that of an exchange, which has none of its own there."""
    return math.inf if device.type == "cpu" else deadline_s(sizes)


class Links(ABC):
    """The means by which ranks exchange tensors."""

    def __init__(self, sizes: ParallelSizes) -> None:
        self._sizes = sizes
        self._within_s = deadline_s(sizes)

    def open(self, place: RankPlace, announce: Callable[[StepPlan], None] = nobody) -> Ranks:
        """Return a rank's links to the others."""
        sizes = self._sizes
        return Ranks(
            place=place,
            tensor=self._open(1 + place.stage, sizes.stage_ranks(place.stage), place.rank),
            pipeline=self._open(
                1 + sizes.pipeline + place.tensor_rank, sizes.tensor_ranks(place.tensor_rank), place.rank
            ),
            whole=self._open(0, tuple(range(sizes.num_ranks)), place.rank),
            announce=announce,
        )

    @abstractmethod
    def open_queue(self, rank: int) -> SharedQueue | None:
        """Return a rank's end of the queue from the leader to the other ranks of its machine, if it is there.

        All ranks call it once, after `open`.
        """

    @abstractmethod
    def abort(self) -> None:
        """End all waits that can be ended: a rank is lost."""

    @abstractmethod
    def _link(self, group: int, members: tuple[int, ...], rank: int) -> Collectives:
        """Return the exchanges of a group of several ranks, all of whom call this."""

    def _open(self, group: int, members: tuple[int, ...], rank: int) -> Collectives:
        return Alone() if len(members) == 1 else self._link(group, members, rank)


class SharedLinks(Links):
    """Exchanges by the C++ kernels through memory that all ranks map: a `descriptor`, or new memory."""

    def __init__(self, sizes: ParallelSizes, library: CpuLibrary, descriptor: int = -1) -> None:
        super().__init__(sizes)
        groups = [sizes.num_ranks, *[sizes.tensor] * sizes.pipeline, *[sizes.pipeline] * sizes.tensor]
        *self._offsets, self._queue_offset = accumulate(map(shared_bytes, groups), initial=0)
        num_bytes = self._queue_offset + queue_bytes(sizes.num_ranks)
        self._library = library
        self.descriptor = os.memfd_create("baton-ranks", os.MFD_CLOEXEC) if descriptor < 0 else descriptor
        if descriptor < 0:
            os.ftruncate(self.descriptor, num_bytes)
        self._memory = mmap.mmap(self.descriptor, num_bytes)

    def close_descriptor(self) -> None:
        """Close the descriptor once nobody else is to open the memory."""
        os.close(self.descriptor)

    def open_queue(self, rank: int) -> SharedQueue:
        return _queue(
            self._library, self._memory, self._queue_offset, self._sizes, rank, self._sizes.leader_first
        )

    def abort(self) -> None:
        for offset in (*self._offsets, self._queue_offset):
            abort(self._memory, offset)

    def _link(self, group: int, members: tuple[int, ...], rank: int) -> Collectives:
        return SharedCollectives(
            self._library,
            self._memory,
            self._offsets[group],
            members.index(rank),
            len(members),
            deadline_s=self._within_s,
        )


class StoreLinks(Links):
    """Exchanges between ranks that meet at a store.

    Args:
        device: this rank's.
        store: host and port of the store.
        host: address of this machine at which other ranks reach it.
        machines: `own_machine` of each rank.
        listener: the leader's listening socket at the store's address.
    """

    def __init__(
        self,
        sizes: ParallelSizes,
        library: CpuLibrary | None,
        device: torch.device,
        store: tuple[str, int],
        host: str,
        machines: Sequence[str],
        listener: socket.socket | None = None,
    ) -> None:
        super().__init__(sizes)
        self.address = store
        self.machines = tuple(machines)
        self._library = library
        self._device = device
        self._host = host
        self._memories: list[mmap.mmap] = []
        self._groups: list[TorchCollectives] = []
        options: dict[str, Any] = {"is_master": listener is not None, "timeout": timedelta(seconds=WITHIN_S)}
        if listener is not None:
            options["master_listen_fd"] = listener.detach()
        self._store = TCPStore(*store, wait_for_workers=False, **options)

    @classmethod
    def lead(
        cls,
        sizes: ParallelSizes,
        library: CpuLibrary | None,
        device: torch.device,
        host: str,
        machines: Sequence[str],
    ) -> StoreLinks:
        """Make the leader's, whose store listens at `host` alone."""
        listener = listen_at(host, 0)
        return cls(sizes, library, device, (host, listener.getsockname()[1]), host, machines, listener)

    def open_queue(self, rank: int) -> SharedQueue | None:
        leader, *others = self._sizes.leader_first
        members = (leader, *(one for one in others if self.machines[one] == self.machines[leader]))
        if self._library is None or rank not in members or len(members) == 1:
            return None
        num_bytes = queue_bytes(self._sizes.num_ranks)
        memory = self._share("queue", num_bytes, members.index(rank), len(members))
        return _queue(self._library, memory, 0, self._sizes, rank, members)

    def abort(self) -> None:
        """End waits in shared memory and on a GPU; those of gloo end with the connection to a killed rank."""
        for memory in self._memories:
            abort(memory, 0)
        for group in self._groups:
            group.abort()

    def _link(self, group: int, members: tuple[int, ...], rank: int) -> Collectives:
        is_apart = len({self.machines[one] for one in members}) > 1
        if self._library is None or is_apart or self._device.type != "cpu":
            linked = self._link_by_torch(f"group-{group}", members, rank)
            self._groups.append(linked)
            return linked
        number, size = members.index(rank), len(members)
        memory = self._share(f"memory-{group}", shared_bytes(size), number, size)
        return SharedCollectives(self._library, memory, 0, number, size, deadline_s=self._within_s)

    def _link_by_torch(self, name: str, members: tuple[int, ...], rank: int) -> TorchCollectives:
        place, within_s = (self._store, name, members.index(rank), len(members)), self._within_s
        if self._device.type == "cpu" or not self._has_gpu_each(name, members, rank):
            return TorchCollectives.over_gloo(*place, host=self._host, deadline_s=within_s)
        return TorchCollectives.over_nccl(*place, device=self._device, deadline_s=within_s)

    def _has_gpu_each(self, name: str, members: tuple[int, ...], rank: int) -> bool:
        """Tell the others of a group which GPU this rank has; True if they have as many as they are."""
        self._store.set(f"{name}-gpu-{rank}", str(torch.cuda.get_device_properties(self._device).uuid))
        try:
            gpus = {self._store.get(f"{name}-gpu-{one}") for one in members}
        except RuntimeError as error:
            raise RankLostError(-1, str(error).partition("\n")[0]) from error
        return len(gpus) == len(members)

    def _share(self, name: str, num_bytes: int, number: int, size: int) -> mmap.mmap:
        """Map memory that the first of `size` ranks makes, and the others open by its place in /proc."""
        try:
            if number == 0:
                descriptor = os.memfd_create("baton-ranks", os.MFD_CLOEXEC)
                os.ftruncate(descriptor, num_bytes)
                self._store.set(name, f"/proc/{os.getpid()}/fd/{descriptor}")
                self._store.wait([f"{name}-{other}" for other in range(1, size)])
            else:
                descriptor = os.open(self._store.get(name), os.O_RDWR | os.O_CLOEXEC)
                self._store.set(f"{name}-{number}", "open")
        except RuntimeError as error:
            raise RankLostError(-1, str(error).partition("\n")[0]) from error
        try:
            self._memories.append(mmap.mmap(descriptor, num_bytes))
        finally:
            os.close(descriptor)
        return self._memories[-1]


def _queue(
    library: CpuLibrary,
    memory: mmap.mmap,
    offset: int,
    sizes: ParallelSizes,
    rank: int,
    members: Sequence[int],
) -> SharedQueue:
    """Return a rank's end of the queue from the first of its members to the others."""
    writer, *readers = members
    return SharedQueue(library, memory, offset, sizes.num_ranks, rank=rank, writer=writer, readers=readers)


def lead_links(
    sizes: ParallelSizes,
    device: torch.device,
    cpu_kernels: str,
    host: str,
    machines: Sequence[str],
    *,
    shares_memory: bool,
) -> Links:
    """Make a leader's links: one shared memory where descriptors can be passed on, else a store."""
    library = load_build(cpu_kernels)
    if library is None or not shares_memory or device.type != "cpu":
        return StoreLinks.lead(sizes, library, device, host, machines)
    return SharedLinks(sizes, library)
