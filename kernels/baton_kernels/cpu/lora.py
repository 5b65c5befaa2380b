"""LoRA adapters of one layer in C++: one call for all adapters of a step.

Matrices stay where they are while their slot is set, and a call reads their addresses from tables: a step
that is recorded is replayed with other rows and other adapters.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from baton_kernels.cpu.library import CpuLibrary
from baton_kernels.cpu.linear_structs import LORA_INPUTS, LORA_RANKS, LoraArgs
from baton_kernels.cpu.memory import WEIGHTS
from baton_kernels.cpu.structs import PANEL_WIDTH
from baton_kernels.interface.lora import LoraLayer, LoraMatrices, LoraTable


class CpuLoraTable(LoraTable):
    """Adapters of float32 or bfloat16; a row's numbers do not depend on the rows beside it."""

    is_capturable = True

    def __init__(self, library: CpuLibrary, layer: LoraLayer) -> None:
        super().__init__(layer)
        self._library = library
        num_slots = layer.num_slots
        self._downs = torch.zeros(num_slots, dtype=torch.int64)
        self._ups = torch.zeros(num_slots, dtype=torch.int64)
        self._ranks = torch.zeros((num_slots, len(layer.part_sizes)), dtype=torch.int32)
        self._part_sizes = torch.tensor(layer.part_sizes, dtype=torch.int64)
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def set(self, slot: int, parts: Sequence[LoraMatrices | None]) -> None:
        ranks = [0 if part is None else len(part.down) for part in parts]
        given = [part for part in parts if part is not None]
        if not given:
            return
        down = torch.cat([part.down for part in given])
        up = torch.cat([_panels(part.up) for part in given])
        num_missing = -len(down) % LORA_RANKS
        if self.layer.is_embedding:
            down = functional.pad(down.T, (0, num_missing))
        else:
            down = functional.pad(down, (0, -down.shape[1] % LORA_INPUTS, 0, num_missing))
        placed = WEIGHTS.copy(down.to(self.layer.dtype)), WEIGHTS.copy(up.to(self.layer.dtype))
        self._kept[slot] = placed
        self._ranks[slot] = torch.tensor(ranks)
        self._downs[slot], self._ups[slot] = (matrix.data_ptr() for matrix in placed)

    def clear(self, slot: int) -> None:
        self._downs[slot] = 0
        self._kept.pop(slot, None)

    def add(self, x: Tensor, y: Tensor, row_slots: Tensor) -> None:
        layer = self.layer
        args = LoraArgs(
            x=None if layer.is_embedding else x.data_ptr(),
            token_ids=x.data_ptr() if layer.is_embedding else None,
            y=y.data_ptr(),
            row_slots=row_slots.data_ptr(),
            downs=self._downs.data_ptr(),
            ups=self._ups.data_ptr(),
            ranks=self._ranks.data_ptr(),
            part_sizes=self._part_sizes.data_ptr(),
            x_stride=x.stride(0),
            y_stride=y.stride(0),
            num_rows=len(y),
            in_features=layer.in_size,
            num_slots=layer.num_slots,
            num_parts=len(layer.part_sizes),
            num_threads=torch.get_num_threads(),
            is_bfloat16=layer.dtype == torch.bfloat16,
        )
        self._library.run(args)


def _panels(up: Tensor) -> Tensor:
    """Return `[part_size, rank]` as panels `[num_panels, rank, PANEL_WIDTH]`, flat, zeros behind the last."""
    padded = functional.pad(up, (0, 0, 0, -len(up) % PANEL_WIDTH))
    return padded.view(-1, PANEL_WIDTH, up.shape[1]).transpose(1, 2).flatten()
