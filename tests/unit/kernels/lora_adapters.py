"""LoRA adapters of one layer, and what they make of its rows in float64."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from baton_kernels.interface.lora import LoraLayer, LoraMatrices


def make_layer(
    in_size: int,
    part_sizes: tuple[int, ...],
    num_slots: int,
    dtype: torch.dtype,
    *,
    is_embedding: bool = False,
) -> LoraLayer:
    return LoraLayer(
        in_size=in_size,
        part_sizes=part_sizes,
        num_slots=num_slots,
        max_rank=80,
        dtype=dtype,
        device=torch.device("cpu"),
        is_embedding=is_embedding,
    )


def make_parts(layer: LoraLayer, ranks: Sequence[int], seed: int = 0) -> list[LoraMatrices | None]:
    """Return random matrices of each part, in numbers of the layer's dtype; rank 0 is none."""
    generator = torch.Generator().manual_seed(seed)

    def random(height: int, width: int) -> Tensor:
        return (torch.randn(height, width, generator=generator) / width**0.5).to(layer.dtype).float()

    return [
        LoraMatrices(down=random(rank, layer.in_size), up=random(size, rank)) if rank else None
        for rank, size in zip(ranks, layer.part_sizes, strict=False)
    ]


def reference(
    layer: LoraLayer,
    adapters: Sequence[Sequence[LoraMatrices | None]],
    x: Tensor,
    y: Tensor,
    row_slots: Tensor,
) -> Tensor:
    """Return `y` with the deltas of the rows' adapters, in float64."""
    out, column = y.double(), 0
    for part, size in enumerate(layer.part_sizes):
        for slot, matrices in enumerate(adapters):
            if (own := matrices[part]) is not None:
                down, up = own.down.double(), own.up.double()
                inner = down.T[x] if layer.is_embedding else x.double() @ down.T
                delta = inner @ up.T
                out[:, column : column + size] += torch.where((row_slots == slot)[:, None], delta, 0.0)
        column += size
    return out
