"""LoRA adapters of one layer in Triton: two launches for all adapters of a step.

Matrices lie where their slot says when a kernel runs, so a captured step is replayed with other rows and
other adapters. A row is multiplied in tiles of one shape, whose other rows do not reach it: its numbers do
not depend on them.
Imported only where Triton is wanted: `TRITON_INTERPRET` is read when a kernel is defined.
"""

# Triton's decorator and kernel arguments have no types; compile-time constants are upper case.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# ruff: noqa: N803

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.interface.lora import LoraLayer, LoraMatrices, LoraTable
from baton_kernels.triton.kernel_variant import TRITON_TYPES, KernelVariant
from baton_kernels.triton.tiles import PRECISION

MIN_RANKS: Final = 16
"""The least width of a matrix product."""
ROWS: Final = 16
"""Rows of a tile: few, as a tile is computed once for each adapter in it."""
MAX_RANK_TILE: Final = 32
"""Ranks that one program takes at a time."""


@triton.jit(do_not_specialize=["num_rows"])
def shrink_rows(
    x_ptr,
    row_slots_ptr,
    downs_ptr,
    ranks_ptr,
    inner_ptr,
    element_ptr,
    num_rows,
    stride_row,
    IN_SIZE: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    RANKS: tl.constexpr,
    RANK_TILE: tl.constexpr,
    ROWS: tl.constexpr,
    INNER: tl.constexpr,
    IS_EMBEDDING: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """`x [num_rows, IN_SIZE]` times the first matrices, into `inner [NUM_PARTS, num_rows, RANKS] float32`.

    Grid: (tiles of num_rows, slots, parts times tiles of ranks). With `IS_EMBEDDING` `x` are token ids
    `[num_rows]`. `element_ptr` has the type of the matrices.
    """
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    slot, part = tl.program_id(1), tl.program_id(2) // (RANKS // RANK_TILE)
    first = tl.program_id(2) % (RANKS // RANK_TILE) * RANK_TILE
    is_own = tl.load(row_slots_ptr + rows, mask=rows < num_rows, other=-1) == slot
    rank = tl.load(ranks_ptr + slot * NUM_PARTS + part)
    if tl.max(is_own.to(tl.int32), 0) * rank > first:
        down = tl.load(downs_ptr + slot * NUM_PARTS + part).to(element_ptr.dtype)
        ranks = first + tl.arange(0, RANK_TILE)
        is_rank = ranks < rank
        if IS_EMBEDDING:
            tokens = tl.load(x_ptr + rows, mask=is_own, other=0)
            places = ranks[None, :].to(tl.int64) * IN_SIZE + tokens[:, None]
            acc = tl.load(down + places, mask=is_own[:, None] & is_rank[None, :], other=0.0).to(tl.float32)
        else:
            acc = tl.zeros([ROWS, RANK_TILE], tl.float32)
            for start in range(0, IN_SIZE, INNER):
                inputs = start + tl.arange(0, INNER)
                is_input = inputs < IN_SIZE
                x_places = rows[:, None] * stride_row + inputs[None, :]
                x = tl.load(x_ptr + x_places, mask=is_own[:, None] & is_input[None, :], other=0.0)
                down_places = ranks[:, None].to(tl.int64) * IN_SIZE + inputs[None, :]
                weight = tl.load(down + down_places, mask=is_rank[:, None] & is_input[None, :], other=0.0)
                acc = tl.dot(x, tl.trans(weight), acc, input_precision=PRECISION)
        places = (part.to(tl.int64) * num_rows + rows[:, None]) * RANKS + ranks[None, :]
        tl.store(inner_ptr + places, acc, mask=is_own[:, None])


@triton.jit(do_not_specialize=["num_rows"])
def expand_rows(
    inner_ptr,
    row_slots_ptr,
    ups_ptr,
    ranks_ptr,
    starts_ptr,
    y_ptr,
    num_rows,
    stride_row,
    NUM_SLOTS: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    RANKS: tl.constexpr,
    RANK_TILE: tl.constexpr,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add what `shrink_rows` made, times the second matrices, to `y`.

    Grid: (tiles of num_rows, tiles of the largest part, parts). Part p begins at the output `starts[p]`.
    """
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    outs = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    part = tl.program_id(2)
    column = tl.load(starts_ptr + part)
    size = tl.load(starts_ptr + part + 1) - column
    slots = tl.load(row_slots_ptr + rows, mask=rows < num_rows, other=-1)
    last = tl.max(slots, 0)
    if (tl.program_id(1) * OUTS < size) & (last >= 0):
        is_out = outs < size
        is_place = (slots >= 0)[:, None] & is_out[None, :]
        y_places = rows[:, None] * stride_row + column + outs[None, :]
        acc = tl.load(y_ptr + y_places, mask=is_place, other=0.0).to(tl.float32)
        inner_rows = inner_ptr + (part.to(tl.int64) * num_rows + rows[:, None]) * RANKS
        for slot in range(tl.min(tl.where(slots < 0, NUM_SLOTS, slots), 0), last + 1):
            is_own = slots == slot
            rank = tl.load(ranks_ptr + slot * NUM_PARTS + part)
            if tl.max(is_own.to(tl.int32), 0) * rank > 0:
                up = tl.load(ups_ptr + slot * NUM_PARTS + part).to(y_ptr.dtype)
                delta = tl.zeros([ROWS, OUTS], tl.float32)
                for start in range(0, rank, RANK_TILE):
                    ranks = start + tl.arange(0, RANK_TILE)
                    is_rank = ranks < rank
                    up_places = outs[:, None].to(tl.int64) * rank + ranks[None, :]
                    weight = tl.load(up + up_places, mask=is_out[:, None] & is_rank[None, :], other=0.0)
                    is_inner = is_own[:, None] & is_rank[None, :]
                    inner = tl.load(inner_rows + ranks[None, :], mask=is_inner, other=0.0)
                    delta = tl.dot(inner, tl.trans(weight.to(tl.float32)), delta, input_precision=PRECISION)
                acc = tl.where(is_own[:, None], acc + delta, acc)
        tl.store(y_ptr + y_places, acc.to(y_ptr.dtype.element_ty), mask=is_place)


class TritonLoraTable(LoraTable):
    """Adapters in the dtype of their layer."""

    is_capturable = True

    def __init__(self, layer: LoraLayer) -> None:
        super().__init__(layer)
        shape = (layer.num_slots, len(layer.part_sizes))
        self._downs = torch.zeros(shape, dtype=torch.int64, device=layer.device)
        self._ups = torch.zeros_like(self._downs)
        self._ranks = torch.zeros(shape, dtype=torch.int32, device=layer.device)
        starts = list(accumulate(layer.part_sizes, initial=0))
        self._starts = torch.tensor(starts, dtype=torch.int32, device=layer.device)
        self._kept: dict[int, list[tuple[Tensor, Tensor] | None]] = {}

    def set(self, slot: int, parts: Sequence[LoraMatrices | None]) -> None:
        kept = [None if part is None else self._pair(part) for part in parts]
        addresses = [(0, 0) if one is None else (one[0].data_ptr(), one[1].data_ptr()) for one in kept]
        self._kept[slot] = kept
        self._downs[slot] = torch.tensor([down for down, _ in addresses])
        self._ups[slot] = torch.tensor([up for _, up in addresses])
        self._ranks[slot] = torch.tensor([0 if part is None else len(part.down) for part in parts])

    def clear(self, slot: int) -> None:
        self._ranks[slot] = 0
        self._kept.pop(slot, None)

    def add(self, x: Tensor, y: Tensor, row_slots: Tensor) -> None:
        layer, num_parts = self.layer, len(self.layer.part_sizes)
        ranks = max(MIN_RANKS, triton.next_power_of_2(layer.max_rank))
        inner = torch.empty((num_parts, len(y), ranks), dtype=torch.float32, device=y.device)
        num_tiles = triton.cdiv(len(y), ROWS)
        shrink = shrink_variant(layer.dtype, layer.in_size, num_parts, ranks, layer.is_embedding)
        num_rank_tiles = ranks // shrink.constexprs["RANK_TILE"]
        places = x, row_slots, self._downs, self._ranks, inner, y
        shrink.launch((num_tiles, layer.num_slots, num_parts * num_rank_tiles), *places, len(y), x.stride(0))
        expand = expand_variant(layer.dtype, layer.num_slots, num_parts, ranks)
        num_outs = triton.cdiv(max(layer.part_sizes), expand.constexprs["OUTS"])
        places = inner, row_slots, self._ups, self._ranks, self._starts, y
        expand.launch((num_tiles, num_outs, num_parts), *places, len(y), y.stride(0))

    def _pair(self, part: LoraMatrices) -> tuple[Tensor, Tensor]:
        down, up = (self._placed(matrix).contiguous() for matrix in (part.down, part.up))
        return down, up


@cache
def shrink_variant(
    dtype: torch.dtype, in_size: int, num_parts: int, ranks: int, is_embedding: bool
) -> KernelVariant:
    """`shrink_rows` for matrices of `dtype`, of at most so many ranks."""
    element = f"*{TRITON_TYPES[dtype]}"
    pointers = {
        "x_ptr": "*i64" if is_embedding else element,
        "row_slots_ptr": "*i32",
        "downs_ptr": "*i64",
        "ranks_ptr": "*i32",
        "inner_ptr": "*fp32",
        "element_ptr": element,
    }
    return KernelVariant(
        kernel=shrink_rows,
        signature={**pointers, "num_rows": "i32", "stride_row": "i32"},
        constexprs={
            "IN_SIZE": in_size,
            "NUM_PARTS": num_parts,
            "RANKS": ranks,
            "RANK_TILE": min(ranks, MAX_RANK_TILE),
            "ROWS": ROWS,
            "INNER": max(32, 4096 // ranks // dtype.itemsize),
            "IS_EMBEDDING": is_embedding,
            "PRECISION": PRECISION,
        },
        aligned=frozenset(pointers) - {"x_ptr", "row_slots_ptr", "element_ptr"},
        num_warps=4,
        num_stages=3,
    )


@cache
def expand_variant(dtype: torch.dtype, num_slots: int, num_parts: int, ranks: int) -> KernelVariant:
    """`expand_rows` for matrices of `dtype`, of at most so many ranks."""
    pointers = {
        "inner_ptr": "*fp32",
        "row_slots_ptr": "*i32",
        "ups_ptr": "*i64",
        "ranks_ptr": "*i32",
        "starts_ptr": "*i32",
        "y_ptr": f"*{TRITON_TYPES[dtype]}",
    }
    return KernelVariant(
        kernel=expand_rows,
        signature={**pointers, "num_rows": "i32", "stride_row": "i32"},
        constexprs={
            "NUM_SLOTS": num_slots,
            "NUM_PARTS": num_parts,
            "RANKS": ranks,
            "RANK_TILE": min(ranks, MAX_RANK_TILE),
            "ROWS": ROWS,
            "OUTS": max(64, min(128, 4096 // ranks)),
            "PRECISION": PRECISION,
        },
        aligned=frozenset(pointers) - {"row_slots_ptr", "y_ptr"},
        num_warps=4,
        num_stages=1,
    )


def aot_variants() -> Iterator[KernelVariant]:
    """Each type, the usual rank and the highest, one part and several, an embedding."""
    for dtype, ranks in (
        (torch.bfloat16, 16),
        (torch.float16, 64),
        (torch.float32, 16),
        (torch.bfloat16, 512),
    ):
        yield shrink_variant(dtype, 4096, 3, ranks, False)
        yield expand_variant(dtype, 8, 3, ranks)
    yield shrink_variant(torch.bfloat16, 128_256, 1, 16, True)
    yield shrink_variant(torch.float32, 880, 1, 16, False)
