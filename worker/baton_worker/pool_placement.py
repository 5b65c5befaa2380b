"""Places a worker's KV pool in memory, and chooses the transports of its blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from baton_core.errors import InvalidConfigError
from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.ranks.rank_layout import RankPlace
from baton_core.ranks.transfer_plan import block_part
from baton_engine.device import resolve_device
from baton_kv.connector import KVConnector
from baton_kv.pool_bytes import allocate_pool
from baton_kv.pool_memory import Lend, give_back, take_back
from baton_kv.transport import Transport


def choose_device(requested: str, transport: Transport) -> torch.device:
    """Return the device for `--device`; "auto" takes no GPU whose pool the transport cannot hand over.

    Raises:
        InvalidConfigError: no such device, or blocks in its memory would have to travel by shared memory.
    """
    device = resolve_device(requested)
    if device.type == "cpu" or transport is not Transport.SHARED_MEMORY:
        return device
    if requested == "auto":
        return torch.device("cpu")
    raise InvalidConfigError(f"device is {requested!r}; allowed with transport {str(transport)!r}: auto, cpu")


def choose_transport(transport: Transport, device: torch.device) -> Transport:
    """Return how blocks travel from a pool on `device`: from a GPU's memory only by NIXL or TCP."""
    return transport if device.type == "cpu" or transport is Transport.NIXL else Transport.TCP


@dataclass(slots=True)
class PoolPlacement:
    """Lets a connector place the pool once the model's shape is known, or serve one on a GPU.

    The pool of the rank at `place` has that rank's part of each block alone. Without a connector no other
    worker reads it.

    The pool stays where it is to the end; while a worker sleeps it has no memory behind it, unless the
    connector pins it.
    """

    make_connector: Callable[[KVSpec], KVConnector] | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    place: RankPlace | None = None
    connector: KVConnector | None = field(default=None, init=False)
    _pool: torch.Tensor | None = field(default=None, init=False)
    _num_bytes: int = field(default=0, init=False)

    def allocate(self, spec: KVSpec, num_blocks: int, lend: Lend | None = None) -> torch.Tensor:
        """Make the connector and its pool `[num_blocks, *spec.block_shape]`, or take its memory back.

        A rank's own pool has the shape of its part.

        `lend` hands new memory to the processes that compute with this one.

        Raises:
            InvalidConfigError: the memory is not there.
        """
        if self._pool is None:
            self._pool = self._place(spec, num_blocks, lend)
            self._num_bytes = self._pool.nbytes
        elif self._is_pinned:
            self._pool.zero_()
        elif self.device.type == "cpu":
            take_back(self._pool.data_ptr(), self._num_bytes)
        else:
            self._pool.untyped_storage().resize_(self._num_bytes)
            self._pool.zero_()
        return self._pool

    def give_back(self) -> None:
        """Give the pool's memory back to the system. Nobody reads or writes a block until `allocate`."""
        assert self._pool is not None, "the pool is placed first"
        if self._is_pinned:
            return
        if self.device.type == "cpu":
            give_back(self._pool.data_ptr(), self._num_bytes)
        else:
            self._pool.untyped_storage().resize_(0)

    @property
    def _is_pinned(self) -> bool:
        return self.connector is not None and self.connector.capabilities.pins_pool

    def _place(self, spec: KVSpec, num_blocks: int, lend: Lend | None) -> torch.Tensor:
        connector = self.connector = self.make_connector(spec) if self.make_connector else None
        if self.device.type == "cpu" and connector is not None:
            return connector.allocate(num_blocks, lend)
        own = block_part(spec, self.place).spec(spec) if self.place else spec
        if self.device.type == "cpu":
            return allocate_pool(num_blocks, own, lend)
        dtype = getattr(torch, own.dtype)
        pool = torch.zeros((num_blocks, *own.block_shape), dtype=dtype, device=self.device)
        if connector is not None:
            connector.register(pool)
        return pool
