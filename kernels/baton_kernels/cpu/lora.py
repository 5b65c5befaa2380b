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
        self._args = LoraArgs(
            x=None,
            token_ids=None,
            y=None,
            row_slots=0,
            downs=self._downs.data_ptr(),
            ups=self._ups.data_ptr(),
            ranks=self._ranks.data_ptr(),
            part_sizes=self._part_sizes.data_ptr(),
            x_stride=0,
            y_stride=0,
            num_rows=0,
            in_features=layer.in_size,
            num_slots=num_slots,
            num_parts=len(layer.part_sizes),
            num_threads=0,
            is_bfloat16=layer.dtype == torch.bfloat16,
        )
        """The part that all calls have alike."""

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
        args = LoraArgs.from_buffer_copy(self._args)
        if self.layer.is_embedding:
            args.token_ids = x.data_ptr()
        else:
            args.x, args.x_stride = x.data_ptr(), x.stride(0)
        args.y, args.y_stride, args.num_rows = y.data_ptr(), y.stride(0), len(y)
        args.row_slots, args.num_threads = row_slots.data_ptr(), torch.get_num_threads()
        self._library.run(args)


def _panels(up: Tensor) -> Tensor:
    """Return `[part_size, rank]` as panels `[num_panels, rank, PANEL_WIDTH]`, flat, zeros behind the last."""
    padded = functional.pad(up, (0, 0, 0, -len(up) % PANEL_WIDTH))
    return padded.view(-1, PANEL_WIDTH, up.shape[1]).transpose(1, 2).flatten()
