"""Exchanges between ranks by torch.distributed: NCCL between GPUs, gloo without the C++ kernels.

A sum is never the library's own, whose order depends on the number of ranks and on the size of what is
summed: parts are exchanged, and added here in the order of the ranks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor
from torch._C import _distributed_c10d
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store

from baton_kernels.interface.collectives import Collectives, RankLostError

ONE_STEP_BYTES: Final = 1 << 19
"""Up to this size every rank gets all of every part: one exchange instead of two."""
_HOST: Final = torch.device("cpu")
_NCCL_SETTINGS: Final = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}
"""Environment in which NCCL's threads leave the end of a process to the watcher of its group."""


class TorchCollectives(Collectives):
    """The exchanges of a process group, whose tensors lie on `device`; others are copied there and back.

    On a GPU calls return at once, as kernels do: a lost rank shows when the results are waited for, which
    `abort` ends.

    Args:
        make_group: returns the group, with which all ranks meet.
        one_step_bytes: size up to which a sum takes one exchange.
    """

    def __init__(
        self,
        make_group: Callable[[], Any],
        rank: int,
        size: int,
        *,
        device: torch.device = _HOST,
        one_step_bytes: int = ONE_STEP_BYTES,
    ) -> None:
        self.rank = rank
        self.size = size
        self._device = device
        self._one_step_bytes = one_step_bytes
        self._group = _explaining(make_group)

    @classmethod
    def over_gloo(
        cls, store: Store, name: str, rank: int, size: int, *, host: str = "127.0.0.1", deadline_s: float
    ) -> TorchCollectives:
        """Meet the group of that name at `store`; `host` is where the others reach this rank.

        Raises:
            RankLostError: another rank does not come within `deadline_s`.
        """
        gloo: Any = ProcessGroupGloo  # its stubs lack half of it
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=host)]
        options._timeout = timedelta(seconds=deadline_s)
        return cls(lambda: gloo(PrefixStore(name, store), rank, size, options), rank, size)

    @classmethod
    def over_nccl(
        cls, store: Store, name: str, rank: int, size: int, *, device: torch.device, deadline_s: float
    ) -> TorchCollectives:
        """Meet the group of that name at `store`, where each rank has a GPU of its own, this one `device`.

        Raises:
            RankLostError: another rank does not come within `deadline_s`.
        """
        for setting, value in _NCCL_SETTINGS.items():
            os.putenv(setting, value)
        nccl: Any = getattr(_distributed_c10d, "ProcessGroupNCCL")  # noqa: B009 (only CUDA builds have it)
        options = nccl.Options()
        options._timeout = timedelta(seconds=deadline_s)

        def make_group() -> Any:
            group = nccl(PrefixStore(name, store), rank, size, options)
            group.eager_connect_single_device(device)
            return group

        return cls(make_group, rank, size, device=device)

    def abort(self) -> None:
        """End this rank's waits on a GPU; any thread may call it.

        Those of gloo end with the connection to a killed rank.
        """
        if self._device.type != "cpu":
            self._group.abort()

    def all_reduce(self, x: Tensor) -> Tensor:
        if x.nbytes <= self._one_step_bytes:
            return _ordered_sum(self.all_gather(x))
        # Each rank adds up its share of the numbers, and gets the others' sums.
        own = self._here(x).reshape(-1)
        share = -(-own.numel() // self.size)
        sent = own.new_zeros((self.size, share))
        sent.view(-1)[: own.numel()] = own
        parts = torch.empty_like(sent)
        self._wait(lambda: self._group.alltoall_base(parts, sent, [], []))
        sums = self._gathered(_ordered_sum(parts))
        return sums.view(-1)[: own.numel()].view(x.shape).to(x.device)

    def all_gather(self, x: Tensor) -> Tensor:
        return self._gathered(self._here(x)).to(x.device)

    def gather(self, x: Tensor, to: int) -> Tensor | None:
        parts = self.all_gather(x)
        return parts if self.rank == to else None

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        return self.all_gather(x)[source]

    def send(self, x: Tensor, to: int) -> None:
        self._wait(lambda: self._group.send([self._here(x)], to, 0))

    def receive(self, x: Tensor, source: int) -> Tensor:
        here = self._here(x)
        self._wait(lambda: self._group.recv([here], source, 0))
        return here if here is x else x.copy_(here)

    def _here(self, x: Tensor) -> Tensor:
        return x.to(self._device).contiguous()

    def _gathered(self, x: Tensor) -> Tensor:
        parts = x.new_empty((self.size, *x.shape))
        self._wait(lambda: self._group._allgather_base(parts.view(-1), x.view(-1)))
        return parts

    def _wait(self, begin: Callable[[], Any]) -> None:
        _explaining(lambda: begin().wait())


def _ordered_sum(parts: Tensor) -> Tensor:
    """Return the sum of `[size, ...]` over its first dimension, in float32 and rounded once."""
    total = torch.zeros(parts.shape[1:], dtype=torch.float32, device=parts.device)
    for part in parts:
        total += part
    return total.to(parts.dtype)


def _explaining(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except RuntimeError as error:
        raise RankLostError(-1, str(error).partition("\n")[0]) from error
