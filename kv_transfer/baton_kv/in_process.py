"""Backend for workers that share one process, in tests and benchmarks.

The connectors that may reach each other share one `InProcessRegistry`.
"""

from __future__ import annotations

import secrets
from itertools import count
from typing import TYPE_CHECKING

import torch

from baton_kv.connector import Capabilities, ProducerUnreachableError, VerifiesBy
from baton_kv.layouts import Blocks
from baton_kv.mapped import MappedConnector
from baton_kv.pool_memory import Lend
from baton_kv.row_copies import CopyRows, copy_rows

if TYPE_CHECKING:
    from baton_core.kv_layout.kv_spec import KVSpec


class InProcessRegistry:
    """The pools on offer in this process, by address.

    Shared by the threads of its connectors: each method is one dictionary operation, which the interpreter
    makes atomic.
    """

    def __init__(self) -> None:
        self._token = secrets.token_hex(8)
        self._pools: dict[str, Blocks] = {}
        self._numbers = count()

    def reserve_address(self) -> str:
        return f"{self._token}/{next(self._numbers)}"

    def offer(self, address: str, blocks: Blocks) -> None:
        self._pools[address] = blocks

    def withdraw(self, address: str) -> None:
        self._pools.pop(address, None)

    def find(self, address: str) -> Blocks | None:
        return self._pools.get(address)


class _OfferedPool:
    def __init__(self, registry: InProcessRegistry, address: str, blocks: Blocks) -> None:
        self._registry = registry
        self._address = address
        self.blocks = blocks

    def is_alive(self) -> bool:
        return self._registry.find(self._address) is not None

    def close(self) -> None:
        del self.blocks


class InProcessConnector(MappedConnector):
    """Copies between pools of one process. Nothing is checksummed: the producer confirms."""

    capabilities = Capabilities(name="in_process", verifies_by=VerifiesBy.CONFIRMATION, has_safe_abort=True)

    def __init__(
        self, spec: KVSpec, epoch: int, registry: InProcessRegistry, copy: CopyRows = copy_rows
    ) -> None:
        super().__init__(spec, epoch, registry.reserve_address(), copy)
        self._registry = registry

    def allocate(self, num_blocks: int, lend: Lend | None = None) -> torch.Tensor:
        pool = super().allocate(num_blocks, lend)
        self._registry.offer(self._address, self.blocks)
        return pool

    def close(self) -> None:
        self._registry.withdraw(self._address)
        super().close()

    def _place(self, num_bytes: int, lend: Lend | None) -> torch.Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def _open(self, address: str, num_blocks: int, block_bytes: int) -> _OfferedPool:
        blocks = self._registry.find(address)
        if blocks is None or blocks.shape != (num_blocks, block_bytes):
            raise ProducerUnreachableError("address", address, "a pool on offer in this process")
        return _OfferedPool(self._registry, address, blocks)
