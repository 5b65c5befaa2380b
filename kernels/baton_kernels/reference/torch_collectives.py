"""Exchanges between ranks by torch.distributed: gloo, for ranks without the C++ kernels."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store

from baton_kernels.interface.collectives import Collectives, RankLostError


class TorchCollectives(Collectives):
    """The exchanges of the group of that name, whose ranks meet at `store`.

    `host` is the address of this machine at which the others reach this rank.
    """

    def __init__(
        self, store: Store, name: str, rank: int, size: int, *, host: str = "127.0.0.1", deadline_s: float
    ) -> None:
        self.rank = rank
        self.size = size
        gloo: Any = ProcessGroupGloo  # its stubs lack half of it
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=host)]
        options._timeout = timedelta(seconds=deadline_s)
        try:
            self._group = gloo(PrefixStore(name, store), rank, size, options)
        except RuntimeError as error:
            raise RankLostError(-1, str(error).partition("\n")[0]) from error

    def all_reduce(self, x: Tensor) -> Tensor:
        # Not gloo's own sum: its order depends on the number of ranks and on the size of what is summed.
        total = torch.zeros(x.shape, dtype=torch.float32)
        for part in self.all_gather(x):
            total += part
        return total.to(x.dtype)

    def all_gather(self, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.size)]
        self._wait(lambda: self._group.allgather([parts], [x.contiguous()]))
        return torch.stack(parts)

    def gather(self, x: Tensor, to: int) -> Tensor | None:
        parts = self.all_gather(x)
        return parts if self.rank == to else None

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        return self.all_gather(x)[source]

    def send(self, x: Tensor, to: int) -> None:
        self._wait(lambda: self._group.send([x.contiguous()], to, 0))

    def receive(self, x: Tensor, source: int) -> Tensor:
        self._wait(lambda: self._group.recv([x], source, 0))
        return x

    def _wait(self, begin: Callable[[], Any]) -> None:
        try:
            begin().wait()
        except RuntimeError as error:
            raise RankLostError(-1, str(error).partition("\n")[0]) from error
