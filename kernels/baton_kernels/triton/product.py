"""Linear layers of the batch-invariant mode, in Triton.

One shape of tile for every number of rows: a result is one sum over the inputs, in tiles taken in order, so
it depends neither on the rows beside it nor on their number.
Imported only where Triton is wanted: `TRITON_INTERPRET` is read when a kernel is defined.
"""

# Triton's decorator and kernel arguments have no types; compile-time constants are upper case.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# ruff: noqa: N803

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.triton.kernel_variant import TRITON_TYPES, KernelVariant
from baton_kernels.triton.tiles import PRECISION


@triton.jit(do_not_specialize=["num_rows"])
def multiply_tiles(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    stride_row,
    IN_SIZE: tl.constexpr,
    OUT_SIZE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    INNER: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """`x [num_rows, IN_SIZE] @ weight [OUT_SIZE, IN_SIZE].T + bias`, rounded once.

    Grid: (tiles of num_rows, tiles of OUT_SIZE).
    """
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    outs = tl.program_id(1).to(tl.int64) * OUTS + tl.arange(0, OUTS)
    is_row, is_out = rows < num_rows, outs < OUT_SIZE
    acc = tl.zeros([ROWS, OUTS], tl.float32)
    for start in range(0, IN_SIZE, INNER):
        inner = start + tl.arange(0, INNER)
        is_inner = inner < IN_SIZE
        x_places = rows[:, None] * stride_row + inner[None, :]
        x = tl.load(x_ptr + x_places, mask=is_row[:, None] & is_inner[None, :], other=0.0)
        weight_places = outs[:, None] * IN_SIZE + inner[None, :]
        weight = tl.load(weight_ptr + weight_places, mask=is_out[:, None] & is_inner[None, :], other=0.0)
        acc = tl.dot(x, tl.trans(weight), acc, input_precision=PRECISION)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + outs, mask=is_out, other=0.0).to(tl.float32)[None, :]
    out_places = rows[:, None] * OUT_SIZE + outs[None, :]
    tl.store(out_ptr + out_places, acc.to(out_ptr.dtype.element_ty), mask=is_row[:, None] & is_out[None, :])


class TritonProduct:
    """A linear layer that keeps its weight as it is."""

    packed_bytes = 0

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight.contiguous()
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        x = x if x.stride(-1) == 1 else x.contiguous()
        out_size, in_size = self._weight.shape
        out = torch.empty((len(x), out_size), dtype=x.dtype, device=x.device)
        variant = product_variant(x.dtype, in_size, out_size, self._bias is not None)
        constants = variant.constexprs
        grid = (triton.cdiv(len(x), constants["ROWS"]), triton.cdiv(out_size, constants["OUTS"]))
        bias = self._weight if self._bias is None else self._bias
        variant.launch(grid, x, self._weight, bias, out, len(x), x.stride(0))
        return out


@cache
def product_variant(dtype: torch.dtype, in_size: int, out_size: int, has_bias: bool) -> KernelVariant:
    """`multiply_tiles` for a weight `[out_size, in_size]` of `dtype`."""
    pointers = dict.fromkeys(("x_ptr", "weight_ptr", "bias_ptr", "out_ptr"), f"*{TRITON_TYPES[dtype]}")
    is_half = dtype.itemsize == 2
    return KernelVariant(
        kernel=multiply_tiles,
        signature={**pointers, "num_rows": "i32", "stride_row": "i32"},
        constexprs={
            "IN_SIZE": in_size,
            "OUT_SIZE": out_size,
            "HAS_BIAS": has_bias,
            "ROWS": 64 if is_half else 32,
            "OUTS": 64 if is_half else 32,
            "INNER": 64 if is_half else 32,
            "PRECISION": PRECISION,
        },
        aligned=frozenset((*pointers, "stride_row")),
        num_warps=4,
        num_stages=3,
    )


def aot_variants() -> Iterator[KernelVariant]:
    """Each type, sizes that fill their tiles and others, with a bias and without."""
    yield product_variant(torch.bfloat16, 4096, 14336, has_bias=False)
    yield product_variant(torch.float16, 896, 151_936, has_bias=True)
    yield product_variant(torch.float32, 880, 4864, has_bias=True)
