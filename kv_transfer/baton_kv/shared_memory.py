"""Backend for workers of one host: the pool lies in shared memory and the puller copies out of it.

Pools are reachable across processes of one user that share a network namespace. A puller can read a
holder's pool but not write to it, and the memory stays readable when the holder dies in mid-copy.
"""

from __future__ import annotations

import os
import secrets
import socket
from typing import TYPE_CHECKING, ClassVar

import msgspec
import numpy as np
import torch

from baton_kv.connector import Capabilities, HolderUnreachableError, VerifiesBy
from baton_kv.description import PoolDescription
from baton_kv.mapped import Blocks, MappedConnector
from baton_kv.pool_memory import map_read_only, reserve_memory
from baton_kv.pool_socket import PoolListener, ask_holder, host_realm, is_open

if TYPE_CHECKING:
    from baton_core.kv_spec import KVSpec


class _SharedPool:
    """A peer's pool, mapped read-only for as long as the connection to its holder is kept."""

    def __init__(self, connection: socket.socket, file: int, num_blocks: int, block_bytes: int) -> None:
        self._connection = connection
        self._memory = map_read_only(file, num_blocks * block_bytes)
        self.blocks: Blocks = np.frombuffer(self._memory, np.uint8).reshape(num_blocks, block_bytes)

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

    capabilities: ClassVar = Capabilities(
        name="shared_memory", verifies_by=VerifiesBy.CHECKSUM, has_safe_abort=True
    )

    def __init__(self, spec: KVSpec, epoch: int, *, connect_timeout_s: float = 1.0) -> None:
        super().__init__(spec, epoch)
        self._connect_timeout_s = connect_timeout_s
        self._realm = host_realm()
        self._address = f"baton-kv-{secrets.token_hex(16)}"
        self._file: int | None = None
        self._listener: PoolListener | None = None

    def allocate(self, num_blocks: int) -> torch.Tensor:
        pool = super().allocate(num_blocks)
        assert self._file is not None
        self._listener = PoolListener(self._address, self.describe(), self._file)
        return pool

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._file is not None:
            os.close(self._file)
            self._file = None
        super().close()

    def _place(self, num_bytes: int) -> torch.Tensor:
        memory, self._file = reserve_memory(num_bytes)
        return torch.frombuffer(memory, dtype=torch.uint8)

    def _where(self) -> tuple[str, str]:
        return self._realm, self._address

    def _open(self, description: PoolDescription) -> _SharedPool:
        try:
            connection, greeting, file = ask_holder(description.address, self._connect_timeout_s)
        except OSError as error:
            allowed = f"a live holder on this host that answers within {self._connect_timeout_s} s ({error})"
            raise HolderUnreachableError("address", description.address, allowed) from error
        try:
            if msgspec.msgpack.decode(greeting, type=PoolDescription) != description:
                raise ValueError("the holder offers another pool")
            return _SharedPool(connection, file, description.num_blocks, self._spec.block_bytes)
        except (msgspec.DecodeError, ValueError, OSError) as error:
            connection.close()
            allowed = f"the pool that was described ({error})"
            raise HolderUnreachableError("address", description.address, allowed) from error
        finally:
            os.close(file)
