"""An engine whose blocks lie in parts at the ranks of a group, and are read by the plan of real ranks.

A slot is divided into pieces of a few bits, one for each KV head of each layer, K and V apart. So a head that
is wrong, left out or another's makes another slot, and a wrong token.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from baton_core.kv_layout.kv_spec import ITEM_BYTES, KVSpec
from baton_core.kv_layout.paging import Paging
from baton_core.ranks.rank_layout import ParallelSizes, RankPlace
from baton_core.ranks.transfer_plan import block_parts, copy_number, plan_reads
from baton_core.worker.worker_events import BlockPull
from baton_simulator.hash_engine import HashEngine

_NUM_LAYERS: Final = 2
_NUM_HEADS: Final = 4
_SLOT_BITS: Final = 64
_PIECE_BITS: Final = _SLOT_BITS // (2 * _NUM_LAYERS * _NUM_HEADS)
_DTYPE: Final = "float32"
_MASK: Final = (1 << _SLOT_BITS) - 1


class SlicedEngine(HashEngine):
    """A group of ranks with a pool each."""

    def __init__(
        self,
        num_blocks: int,
        paging: Paging,
        sizes: ParallelSizes,
        *,
        garbled: float = 0.0,
        rng: Random | None = None,
    ) -> None:
        super().__init__(num_blocks, paging, garbled=garbled, rng=rng)
        self._spec = KVSpec(
            num_layers=_NUM_LAYERS,
            num_kv_heads=_NUM_HEADS,
            head_dim=1,
            block_size=paging.block_size,
            dtype=_DTYPE,
        )
        self.num_ranks = sizes.num_ranks
        self.parts = block_parts(self._spec, sizes)
        """The layers and heads of each rank."""
        self._cells = [part.cells(self._spec) for part in self.parts]
        places = [RankPlace(sizes=sizes, rank=rank) for rank in range(sizes.num_ranks)]
        self._copy_of = [copy_number(self._spec, place) for place in places]

    def checksum(self, block_id: int) -> int:
        """Return the sum over heads that ranks take together: each counts with its place."""
        (first, *_) = self._sums(self.memories(block_id))
        return first

    def memories(self, block_id: int) -> list[bytearray]:
        """Return the bytes of each rank's part of a block."""
        slots = self.blocks[block_id]
        return [
            bytearray(
                b"".join(
                    (slot >> cell * _PIECE_BITS & ((1 << _PIECE_BITS) - 1)).to_bytes(
                        ITEM_BYTES[_DTYPE], "little"
                    )
                    for cell in cells
                    for slot in slots
                )
            )
            for cells in self._cells
        ]

    def pull(self, blocks: tuple[BlockPull, ...], source: HashEngine) -> tuple[int, ...]:
        assert isinstance(source, SlicedEngine), "workers with pools apart pair with each other alone"
        ranks = range(self.num_ranks)
        plans = [plan_reads(self._spec, source.parts, self.parts, rank) for rank in ranks]
        failed = []
        for block in blocks:
            given, taken = source.memories(block.remote_block_id), self.memories(block.local_block_id)
            for memory, plan in zip(taken, plans, strict=True):
                for producer, ranges in plan.items():
                    for one in ranges:
                        content = given[producer][one.source : one.source + one.num_bytes]
                        memory[one.target : one.target + one.num_bytes] = content
            if self._is_garbled():
                taken[self._rng.choice(ranks)][0] ^= 1
            self.blocks[block.local_block_id] = self._slots(taken)
            if block.checksum is not None and self._sums(taken) != {block.checksum}:
                failed.append(block.local_block_id)
        return tuple(failed)

    def _sums(self, memories: Sequence[bytearray]) -> set[int]:
        """Return the checksums of the copies of a block that ranks have: one if all are right."""
        sums = dict.fromkeys(self._copy_of, 0)
        size = self._spec.head_bytes
        for copy, cells, memory in zip(self._copy_of, self._cells, memories, strict=True):
            for position, cell in enumerate(cells):
                head = tuple(memory[position * size : (position + 1) * size])
                sums[copy] += (2 * cell + 1) * hash(head)
        return {total & _MASK for total in sums.values()}

    def _slots(self, memories: Sequence[bytearray]) -> list[int]:
        """Return the slots of a block, given its parts."""
        slots, item = [0] * self.paging.block_size, ITEM_BYTES[_DTYPE]
        pieces = {
            (cell, row): int.from_bytes(memory[at : at + item], "little")
            for cells, memory in zip(self._cells, memories, strict=True)
            for position, cell in enumerate(cells)
            for row in range(len(slots))
            for at in [(position * len(slots) + row) * item]
        }
        for (cell, row), piece in pieces.items():
            slots[row] |= piece << cell * _PIECE_BITS
        return [slot - (slot >> (_SLOT_BITS - 1) << _SLOT_BITS) for slot in slots]
