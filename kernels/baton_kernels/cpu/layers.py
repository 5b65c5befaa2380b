"""Norms, activations and linear layers on a CPU, in C++: each row is read once, computed in float32 and, but
for norm weights in the dtype of bfloat16 rows, rounded once.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from baton_kernels.cpu.attention import DTYPES
from baton_kernels.cpu.c_struct import address_of
from baton_kernels.cpu.int8 import PackedInt8Product, can_multiply_codes, is_int8
from baton_kernels.cpu.library import CpuLibrary
from baton_kernels.cpu.lora import CpuLoraTable
from baton_kernels.cpu.memory import RESULTS
from baton_kernels.cpu.packed import packed_product
from baton_kernels.cpu.quantized import QuantizedProduct, can_pair_inputs
from baton_kernels.cpu.structs import CopyArgs, ElementwiseArgs, NormArgs, RotaryAnglesArgs
from baton_kernels.interface.kernels import VECTORISED, Function, LayerKernels, Product
from baton_kernels.interface.lora import LoraLayer, LoraTable
from baton_kernels.interface.quantized import QuantizedWeight

MAX_COPIED_ROWS: Final = 64
"""More are copied by torch, in several threads."""


class CpuLayers(LayerKernels):
    """Norms, gates and linear layers of float32 and bfloat16; a row's numbers do not depend on its batch."""

    def __init__(self, library: CpuLibrary) -> None:
        self._library = library

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self.normalise(x, None, weight, None, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        residual = residual.contiguous()
        return self.normalise(x, residual, weight, None, eps), residual

    def look_up(self, table: Tensor, rows: Tensor) -> Tensor:
        if len(rows) > MAX_COPIED_ROWS or not (table.is_contiguous() and rows.is_contiguous()):
            return super().look_up(table, rows)
        out = torch.empty(len(rows), table.shape[1], dtype=table.dtype)
        self._copy(table, rows, out)
        return out

    def copy(self, source: Tensor, target: Tensor) -> None:
        if len(source) > MAX_COPIED_ROWS or not (source.is_contiguous() and target.is_contiguous()):
            super().copy(source, target)
        else:
            self._copy(source, None, target)

    def rotary_angles(
        self, positions: Tensor, inv_freq: Tensor, magnitude: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        if dtype not in DTYPES or not positions.is_contiguous():
            return super().rotary_angles(positions, inv_freq, magnitude, dtype)
        cos, sin = (torch.empty(len(positions), 1, len(inv_freq), dtype=dtype) for _ in range(2))
        args = RotaryAnglesArgs(
            positions=positions.data_ptr(),
            inv_freq=inv_freq.data_ptr(),
            cos=cos.data_ptr(),
            sin=sin.data_ptr(),
            num_tokens=len(positions),
            rotary_dim=len(inv_freq),
            num_threads=torch.get_num_threads(),
            magnitude=magnitude,
            is_bfloat16=dtype == torch.bfloat16,
        )
        self._library.run(args)
        return cos, sin

    def apply_mul(self, function: Function, gate_up: Tensor) -> Tensor:
        if function not in VECTORISED:
            return super().apply_mul(function, gate_up)
        gate, up = (gate_up if gate_up.stride(1) == 1 else gate_up.contiguous()).chunk(2, dim=-1)
        return self.apply_rows(function, gate, up)

    def product(self, weight: Tensor, bias: Tensor | None) -> Product | None:
        return packed_product(self._library, weight, bias)

    def quantized_product(
        self, weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype
    ) -> Product | None:
        if is_int8(weight) and can_multiply_codes(self._library.variant):
            return PackedInt8Product(self._library, weight, bias)
        is_taken = dtype in DTYPES and can_pair_inputs(weight)
        return QuantizedProduct(self._library, weight, bias, dtype) if is_taken else None

    def lora_table(self, layer: LoraLayer) -> LoraTable:
        return CpuLoraTable(self._library, layer) if layer.dtype in DTYPES else super().lora_table(layer)

    def _copy(self, source: Tensor, rows: Tensor | None, target: Tensor) -> None:
        """Fill `target` with rows of `source`; None: with the first ones, in order."""
        args = CopyArgs(
            source=source.data_ptr(),
            target=target.data_ptr(),
            source_rows=address_of(rows),
            target_rows=None,
            num_source_rows=len(source),
            num_target_rows=len(target),
            num_rows=len(target),
            row_bytes=source.shape[1] * source.element_size(),
            is_past_caches=False,
        )
        self._library.run(args)

    def normalise(
        self,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        *,
        is_centered: bool = False,
    ) -> Tensor:
        """Normalise the last axis of `x`, centered to mean 0 if asked for; mutates `residual` to the sum."""
        size = x.shape[-1]
        num_inner = x.shape[1] if x.dim() == 3 else 1
        is_dense = x.dim() in (2, 3) and x.stride(-1) == 1 and (num_inner == 1 or x.stride(1) == size)
        if not is_dense:
            x, num_inner = x.contiguous(), 1
        out = RESULTS.empty(x.shape, x.dtype)
        args = NormArgs(
            x=x.data_ptr(),
            residual=address_of(residual),
            weight=address_of(weight),
            bias=address_of(bias),
            out=out.data_ptr(),
            stride=x.stride(0) if is_dense else size,
            num_rows=x.numel() // size,
            num_inner=num_inner,
            size=size,
            num_threads=torch.get_num_threads(),
            is_bfloat16=x.dtype == torch.bfloat16,
            is_weight_bfloat16=weight is not None and weight.dtype == torch.bfloat16,
            is_centered=is_centered,
            eps=eps,
        )
        self._library.run(args)
        return out

    def apply_rows(self, function: Function, x: Tensor, factor: Tensor | None) -> Tensor:
        """Return `function(x) * factor`, both `[num_rows, size]` with rows at the same distances."""
        out = RESULTS.empty(x.shape, x.dtype)
        args = ElementwiseArgs(
            x=x.data_ptr(),
            factor=address_of(factor),
            out=out.data_ptr(),
            stride=x.stride(0),
            num_rows=len(x),
            size=x.shape[1],
            num_threads=torch.get_num_threads(),
            is_bfloat16=x.dtype == torch.bfloat16,
            function=function,
        )
        self._library.run(args)
        return out
