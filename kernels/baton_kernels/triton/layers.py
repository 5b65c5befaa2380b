"""Norms and activations in Triton: each kernel reads its inputs and writes its outputs once.

Imported only where Triton is wanted: `TRITON_INTERPRET` is read when a kernel is defined.
"""

# Triton's decorator and kernel arguments have no types; compile-time constants are upper case.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# ruff: noqa: N803

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.interface.kernels import Function, LayerKernels, Product
from baton_kernels.interface.lora import LoraLayer, LoraTable
from baton_kernels.interface.quantized import QuantizedWeight
from baton_kernels.triton.kernel_variant import TRITON_TYPES, KernelVariant
from baton_kernels.triton.lora import TritonLoraTable
from baton_kernels.triton.quantized_product import quantized_product

TILE_ELEMENTS: Final = 2048
"""Elements that one program takes where it may choose: several short rows, or a piece of a long one."""


@triton.jit
def norm_rows(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    total_ptr,
    eps,
    num_inner,
    stride_x_outer,
    stride_x_inner,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PAD: tl.constexpr,
    ADDS: tl.constexpr,
):
    """Normalise `ROWS` rows of `x [num_outer, num_inner, SIZE]` as `LayerKernels.rms_norm` says.

    Grid: (num_outer, tiles of num_inner). With `ADDS` the residual, laid out like the contiguous outputs, is
    added first, and the sum, rounded to its type, is both normalised and stored.
    """
    outer = tl.program_id(0).to(tl.int64)
    inner = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, SIZE_PAD)
    mask = (inner < num_inner)[:, None] & (dims < SIZE)[None, :]
    places = outer * stride_x_outer + inner[:, None] * stride_x_inner + dims[None, :]
    out_places = (outer * num_inner + inner[:, None]) * SIZE + dims[None, :]
    x = tl.load(x_ptr + places, mask=mask, other=0.0).to(tl.float32)
    if ADDS:
        x += tl.load(residual_ptr + out_places, mask=mask, other=0.0).to(tl.float32)
        total = x.to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + out_places, total, mask=mask)
        x = total.to(tl.float32)
    scaled = x * tl.rsqrt(tl.sum(x * x, 1) / SIZE + eps)[:, None]
    weight = tl.load(weight_ptr + dims, mask=dims < SIZE, other=0.0)
    if weight.dtype != tl.float32:
        scaled = scaled.to(weight.dtype).to(tl.float32)
    out = scaled * weight.to(tl.float32)[None, :]
    tl.store(out_ptr + out_places, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def multiply_silu(gate_up_ptr, out_ptr, stride_row, SIZE: tl.constexpr, TILE: tl.constexpr):
    """`silu(gate) * up` of `gate_up [num_rows, 2 * SIZE]` in float32. Grid: (num_rows, tiles of SIZE)."""
    row = tl.program_id(0).to(tl.int64)
    dims = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = dims < SIZE
    gate = tl.load(gate_up_ptr + row * stride_row + dims, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * stride_row + SIZE + dims, mask=mask, other=0.0).to(tl.float32)
    out = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * SIZE + dims, out.to(out_ptr.dtype.element_ty), mask=mask)


class TritonLayers(LayerKernels):
    """`LayerKernels` with one launch each; results are rounded once, at the end."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rows = _as_rows(x)
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        _norm(rows, rows, weight, out, out, eps, adds=False)
        return out

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        residual = residual.contiguous()
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        _norm(_as_rows(x), residual, weight, out, residual, eps, adds=True)
        return out, residual

    def apply_mul(self, function: Function, gate_up: Tensor) -> Tensor:
        if function != Function.SILU:
            return super().apply_mul(function, gate_up)
        num_rows, width = gate_up.shape
        out = torch.empty((num_rows, width // 2), dtype=gate_up.dtype, device=gate_up.device)
        variant = silu_variant(gate_up.dtype, width // 2)
        grid = (num_rows, triton.cdiv(width // 2, variant.constexprs["TILE"]))
        variant.launch(grid, gate_up, out, gate_up.stride(0))
        return out

    def quantized_product(
        self, weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype
    ) -> Product | None:
        return quantized_product(weight, bias, is_invariant=False)

    def lora_table(self, layer: LoraLayer) -> LoraTable:
        return TritonLoraTable(layer)


def _as_rows(x: Tensor) -> Tensor:
    """View as `[num_outer, num_inner, size]` with contiguous rows; copies what cannot be viewed so."""
    rows = x[:, None] if x.dim() == 2 else x
    return rows if rows.dim() == 3 and rows.stride(2) == 1 else x.reshape(1, -1, x.shape[-1]).contiguous()


def _norm(
    rows: Tensor, residual: Tensor, weight: Tensor, out: Tensor, total: Tensor, eps: float, *, adds: bool
) -> None:
    num_outer, num_inner, size = rows.shape
    variant = norm_variant(rows.dtype, weight.dtype, size, num_inner == 1, adds)
    grid = (num_outer, triton.cdiv(num_inner, variant.constexprs["ROWS"]))
    variant.launch(grid, rows, residual, weight, out, total, eps, num_inner, *rows.stride()[:2])


@cache
def norm_variant(
    dtype: torch.dtype, weight_dtype: torch.dtype, size: int, is_single: bool, adds: bool
) -> KernelVariant:
    """`norm_rows` for rows of `size`; `is_single` where there is one row per outer index."""
    size_pad = triton.next_power_of_2(size)
    element = f"*{TRITON_TYPES[dtype]}"
    pointers = dict.fromkeys(("x_ptr", "residual_ptr", "weight_ptr", "out_ptr", "total_ptr"), element)
    pointers["weight_ptr"] = f"*{TRITON_TYPES[weight_dtype]}"
    strides = ("stride_x_outer", "stride_x_inner")
    return KernelVariant(
        kernel=norm_rows,
        signature={**pointers, "eps": "fp32", "num_inner": "i32", **dict.fromkeys(strides, "i32")},
        constexprs={
            "ROWS": 1 if is_single else max(1, TILE_ELEMENTS // size_pad),
            "SIZE": size,
            "SIZE_PAD": size_pad,
            "ADDS": adds,
        },
        aligned=frozenset((*pointers, *strides)),
        num_warps=min(32, max(4, size_pad // 512)),
        num_stages=1,
    )


@cache
def silu_variant(dtype: torch.dtype, size: int) -> KernelVariant:
    """`multiply_silu` for halves of `size`."""
    pointers = dict.fromkeys(("gate_up_ptr", "out_ptr"), f"*{TRITON_TYPES[dtype]}")
    return KernelVariant(
        kernel=multiply_silu,
        signature={**pointers, "stride_row": "i32"},
        constexprs={"SIZE": size, "TILE": min(triton.next_power_of_2(size), TILE_ELEMENTS)},
        aligned=frozenset((*pointers, "stride_row")),
        num_warps=4,
        num_stages=1,
    )


def aot_variants() -> Iterator[KernelVariant]:
    """The corners: a head's norm and the widest hidden size, both types of weight."""
    yield norm_variant(torch.bfloat16, torch.bfloat16, 128, False, False)
    yield norm_variant(torch.float16, torch.float32, 3584, True, True)
    yield norm_variant(torch.float32, torch.float32, 16384, True, True)
    yield silu_variant(torch.bfloat16, 18944)
    yield silu_variant(torch.float32, 18944)
