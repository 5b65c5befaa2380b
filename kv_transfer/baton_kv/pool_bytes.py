"""The local pool as bytes: where a backend reads the blocks it sends and writes those that arrive.

A pool in host memory is accessed in place, one on a device through pinned host memory. All bytes seen
here, `[num_rows, num_bytes] uint8`, are in host memory.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from baton_core.errors import require
from baton_core.kv_layout.kv_spec import KVSpec
from baton_kv.layouts import Blocks
from baton_kv.pool_memory import Lend, reserve_memory


def require_blocks(num_blocks: int) -> None:
    """Refuse a pool without blocks.

    Raises:
        InvalidConfigError: names the number.
    """
    require("num_blocks", num_blocks, num_blocks >= 1, "1 or more")


def as_pool(memory: Tensor, spec: KVSpec) -> Tensor:
    """See `[num_bytes] uint8` as a pool `[num_blocks, *spec.block_shape]`."""
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return memory.view(dtype).view(-1, *spec.block_shape)


def allocate_pool(num_blocks: int, spec: KVSpec, lend: Lend | None = None) -> Tensor:
    """Place a zeroed pool `[num_blocks, *spec.block_shape]` in host memory that is reserved at once.

    `lend` is as in `reserve_memory`.

    Raises:
        InvalidConfigError: no blocks, or the memory is not there.
    """
    require_blocks(num_blocks)
    memory, file = reserve_memory(num_blocks * spec.block_bytes, lend)
    os.close(file)
    return as_pool(torch.frombuffer(memory, dtype=torch.uint8), spec)


def open_pool(pool: Tensor) -> PoolBytes:
    """Access a contiguous pool `[num_blocks, ...]` of any dtype, wherever it lies."""
    rows = pool.flatten(1).view(torch.uint8)
    return HostPool(rows) if pool.device.type == "cpu" else DevicePool(rows)


class PoolBytes(ABC):
    """Reads and writes whole blocks, or the same `columns` (a range of bytes) of each."""

    is_in_place: bool
    """True if `view` shows the pool itself, to be read and written."""
    block_bytes: int

    @abstractmethod
    def __len__(self) -> int:
        """Number of blocks."""

    @abstractmethod
    def read(self, block_ids: Sequence[int], columns: slice, out: Blocks) -> None:
        """Gather blocks into the rows of `out`; returns when they are there."""

    def view(self, block_ids: Sequence[int], columns: slice) -> list[memoryview]:
        """The bytes of blocks, one after the other: in place, or a copy."""
        num_bytes = columns.stop - columns.start
        copy = self.make_buffer(len(block_ids) * num_bytes).reshape(-1, num_bytes)
        self.read(block_ids, columns, copy)
        return [copy.reshape(-1).data]

    @abstractmethod
    def write(self, block_ids: Sequence[int], columns: slice, rows: Blocks) -> None:
        """Scatter rows over blocks; returns when `rows` may be reused."""

    @abstractmethod
    def make_buffer(self, num_bytes: int) -> Blocks:
        """Host memory `[num_bytes]` that `read` fills fastest."""

    def block(self, block_id: int) -> memoryview:
        """Return the bytes of a block: in place, or a copy."""
        return self.view([block_id], slice(0, self.block_bytes))[0]


class HostPool(PoolBytes):
    """A pool in host memory, given as `[num_blocks, block_bytes] uint8`."""

    is_in_place = True

    def __init__(self, rows: Tensor) -> None:
        self._blocks: Blocks = rows.numpy()
        self.block_bytes = rows.shape[1]

    def __len__(self) -> int:
        return len(self._blocks)

    def read(self, block_ids: Sequence[int], columns: slice, out: Blocks) -> None:
        for row, block_id in zip(out, block_ids, strict=True):
            row[:] = self._blocks[block_id, columns]

    def view(self, block_ids: Sequence[int], columns: slice) -> list[memoryview]:
        return [self._blocks[block_id, columns].data for block_id in block_ids]

    def write(self, block_ids: Sequence[int], columns: slice, rows: Blocks) -> None:
        for row, block_id in zip(rows, block_ids, strict=True):
            self._blocks[block_id, columns] = row

    def make_buffer(self, num_bytes: int) -> Blocks:
        return np.empty(num_bytes, np.uint8)


class DevicePool(PoolBytes):
    """A pool in a device's memory, given as `[num_blocks, block_bytes] uint8`.

    Works on the current stream of the calling thread and waits for its own copies; whoever computed the
    blocks has waited for them before.
    """

    is_in_place = False

    def __init__(self, rows: Tensor) -> None:
        self.block_bytes = rows.shape[1]
        self._rows = rows
        self._staging = torch.empty(0, dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, block_ids: Sequence[int], columns: slice, out: Blocks) -> None:
        gathered = self._words(columns).index_select(0, self._index(block_ids))
        torch.from_numpy(out).copy_(gathered.view(torch.uint8))

    def write(self, block_ids: Sequence[int], columns: slice, rows: Blocks) -> None:
        if len(self._staging) < rows.size:
            self._staging = torch.from_numpy(self.make_buffer(rows.size))
        staged = self._staging[: rows.size].view(rows.shape)
        staged.numpy()[:] = rows
        words = self._words(columns)
        words.index_copy_(0, self._index(block_ids), staged.to(words.device).view(words.dtype))

    def make_buffer(self, num_bytes: int) -> Blocks:
        is_pinned = self._rows.device.type == "cuda"
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=is_pinned).numpy()

    def _words(self, columns: slice) -> Tensor:
        """Return columns of all blocks, in the largest items that they are made of."""
        if self.block_bytes % 8 or columns.start % 8 or columns.stop % 8:
            return self._rows[:, columns]
        return self._rows.view(torch.int64)[:, columns.start // 8 : columns.stop // 8]

    def _index(self, block_ids: Sequence[int]) -> Tensor:
        return torch.tensor(block_ids, dtype=torch.int64, device=self._rows.device)
