"""Stand-in."""
import datetime, os
import torch
import torch.distributed as dist
from torch import Tensor
from baton_kernels.interface.collectives import Collectives


class SharedCollectives(Collectives):
    def __init__(self, name: str, rank: int, size: int, *, deadline_s: float) -> None:
        self.rank, self.size = rank, size
        store = dist.FileStore(f"/tmp/ranks-{name}", size)
        self._group = dist.ProcessGroupGloo(dist.PrefixStore("x", store), rank, size, datetime.timedelta(seconds=deadline_s))

    def all_reduce(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x, dtype=torch.float32)
        for part in self.all_gather(x):
            total += part.float()
        return total.to(x.dtype)

    def all_gather(self, x: Tensor) -> Tensor:
        outs = [torch.empty_like(x) for _ in range(self.size)]
        self._group.allgather([outs], [x.contiguous()]).wait()
        return torch.stack(outs)

    def gather(self, x: Tensor, to: int):
        parts = self.all_gather(x)
        return parts if self.rank == to else None

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        return self.all_gather(x)[source]

    def send(self, x: Tensor, to: int) -> None:
        self._group.send([x.contiguous()], to, 0).wait()

    def receive(self, x: Tensor, source: int) -> Tensor:
        self._group.recv([x], source, 0).wait()
        return x

    def barrier(self) -> None:
        self._group.barrier().wait()
