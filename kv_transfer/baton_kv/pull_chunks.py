"""Cuts the blocks of a pull into chunks: both ends know the cuts, so that a chunk only has a number.

Small blocks go several to a chunk; a block that is larger than a chunk goes in several.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CHUNK_BYTES: Final = 4 << 20
"""At most so many bytes to a chunk."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The same bytes of some blocks that follow each other in the pull."""

    first: int
    """Position of the first block in the pull."""
    num_blocks: int
    columns: slice
    """Bytes of each block."""

    @property
    def blocks(self) -> slice:
        return slice(self.first, self.first + self.num_blocks)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and bytes of each."""
        return self.num_blocks, self.columns.stop - self.columns.start

    @property
    def num_bytes(self) -> int:
        num_rows, num_columns = self.shape
        return num_rows * num_columns


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """The chunks of a pull of `num_blocks`, in their order."""

    num_blocks: int
    block_bytes: int

    @property
    def chunks_per_block(self) -> int:
        """1 for blocks that fit into a chunk."""
        return -(-self.block_bytes // CHUNK_BYTES)

    @property
    def blocks_per_chunk(self) -> int:
        """1 for blocks that do not fit."""
        return max(1, CHUNK_BYTES // self.block_bytes)

    def __len__(self) -> int:
        return -(-self.num_blocks // self.blocks_per_chunk) * self.chunks_per_block

    def __getitem__(self, number: int) -> Chunk:
        group, piece = divmod(number, self.chunks_per_block)
        first, start = group * self.blocks_per_chunk, piece * CHUNK_BYTES
        return Chunk(
            first=first,
            num_blocks=min(self.blocks_per_chunk, self.num_blocks - first),
            columns=slice(start, min(start + CHUNK_BYTES, self.block_bytes)),
        )
