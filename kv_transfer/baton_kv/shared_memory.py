"""Backend for workers of one host: the pool lies in shared memory and the consumer copies out of it.

Pools are reachable across processes of one user that share a network namespace: who can read the nonce
behind a pool's last block has found the right memory. A consumer cannot write to a producer's pool, and the
memory stays readable when the producer dies in mid-copy.
"""

from __future__ import annotations

import mmap
import os
import secrets
import socket
from typing import TYPE_CHECKING

import numpy as np
import torch

from baton_kv.connector import Capabilities, ProducerUnreachableError, VerifiesBy
from baton_kv.layouts import Blocks
from baton_kv.mapped import MappedConnector
from baton_kv.pool_memory import Lend, map_read_only, reserve_memory
from baton_kv.pool_socket import PoolListener, is_open, request_pool
from baton_kv.row_copies import CopyRows, copy_rows

if TYPE_CHECKING:
    from baton_core.kv_layout.kv_spec import KVSpec


class _SharedPool:
    """A peer's pool, mapped read-only for as long as the connection to its producer is kept."""

    def __init__(self, connection: socket.socket, memory: mmap.mmap, num_blocks: int, num_bytes: int) -> None:
        self._connection = connection
        self._memory = memory
        self.blocks: Blocks = np.frombuffer(memory, np.uint8, num_bytes).reshape(num_blocks, -1)

    def is_alive(self) -> bool:
        return is_open(self._connection)

    def close(self) -> None:
        del self.blocks
        self._memory.close()
        self._connection.close()


class SharedMemoryConnector(MappedConnector):
    """Copies between pools of one host; every block is checksummed.

    `connect` blocks for at most `connect_timeout_s`.
    """

    capabilities = Capabilities(name="shared_memory", verifies_by=VerifiesBy.CHECKSUM, has_safe_abort=True)

    def __init__(
        self, spec: KVSpec, epoch: int, copy: CopyRows = copy_rows, *, connect_timeout_s: float = 1.0
    ) -> None:
        super().__init__(spec, epoch, f"baton-kv-{secrets.token_hex(16)}", copy)
        self._connect_timeout_s = connect_timeout_s
        self._listener: PoolListener | None = None

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        super().close()

    def _place(self, num_bytes: int, lend: Lend | None) -> torch.Tensor:
        nonce = self._address.encode()
        memory, file = reserve_memory(num_bytes + len(nonce), lend)
        memory[num_bytes:] = nonce
        self._listener = PoolListener(self._address, file)
        return torch.frombuffer(memory, dtype=torch.uint8, count=num_bytes)

    def _open(self, address: str, num_blocks: int, block_bytes: int) -> _SharedPool:
        try:
            connection, file = request_pool(address, self._connect_timeout_s)
        except OSError as error:
            allowed = (
                f"a live producer on this host that answers within {self._connect_timeout_s} s ({error})"
            )
            raise ProducerUnreachableError("address", address, allowed) from error
        num_bytes = num_blocks * block_bytes
        try:
            memory = _map(file, num_bytes, nonce=address.encode())
        except (ValueError, OSError) as error:
            connection.close()
            allowed = f"the pool that was described ({error})"
            raise ProducerUnreachableError("address", address, allowed) from error
        finally:
            os.close(file)
        return _SharedPool(connection, memory, num_blocks, num_bytes)


def _map(file: int, num_bytes: int, nonce: bytes) -> mmap.mmap:
    """Map a pool of `num_bytes`, and the nonce behind it.

    Raises:
        ValueError: it is another pool.
        OSError: it cannot be mapped.
    """
    memory = map_read_only(file, num_bytes + len(nonce))
    found = memory[num_bytes:]
    if found != nonce:
        memory.close()
        raise ValueError(f"the nonce behind its blocks is {found!r}; allowed: {nonce!r}")
    return memory
