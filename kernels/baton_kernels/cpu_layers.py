"""What lies between two matrix products on a CPU, in C++: each row is read once, computed in float32 and, but
for weights in the type of bfloat16 rows, rounded once. The structs mirror those of cpu/row_functions.h.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p

import torch
from torch import Tensor

from baton_kernels.cpu_library import CpuLibrary
from baton_kernels.cpu_memory import RESULTS
from baton_kernels.cpu_packed import packed_product
from baton_kernels.int8 import PackedInt8Product, can_multiply_codes
from baton_kernels.int8_library import Int8Library
from baton_kernels.interface import VECTORISED, Function, LayerKernels, Product


class Norm(ctypes.Structure):
    """A normalisation of rows."""

    _fields_ = (
        ("x", c_void_p),
        ("residual", c_void_p),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("out", c_void_p),
        ("stride", c_int64),
        ("num_rows", c_int64),
        ("num_inner", c_int64),
        ("size", c_int64),
        ("num_threads", c_int64),
        ("is_bfloat16", c_int32),
        ("is_weight_bfloat16", c_int32),
        ("is_centered", c_int32),
        ("eps", c_float),
    )


class Elementwise(ctypes.Structure):
    """A function of each number, times another number."""

    _fields_ = (
        ("x", c_void_p),
        ("factor", c_void_p),
        ("out", c_void_p),
        ("stride", c_int64),
        ("num_rows", c_int64),
        ("size", c_int64),
        ("num_threads", c_int64),
        ("is_bfloat16", c_int32),
        ("function", c_int32),
    )


class CpuLayers(LayerKernels):
    """Norms, gates and linear layers of float32 and bfloat16; a row's numbers do not depend on its batch."""

    def __init__(self, library: CpuLibrary) -> None:
        self._library = library
        self._normalise, self._apply = library.function("baton_normalise"), library.function("baton_apply")

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self.normalise(x, None, weight, None, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        residual = residual.contiguous()
        return self.normalise(x, residual, weight, None, eps), residual

    def apply_mul(self, function: Function, gate_up: Tensor) -> Tensor:
        if function not in VECTORISED:
            return super().apply_mul(function, gate_up)
        gate, up = (gate_up if gate_up.stride(1) == 1 else gate_up.contiguous()).chunk(2, dim=-1)
        return self.apply_rows(function, gate, up)

    def product(self, weight: Tensor, bias: Tensor | None) -> Product | None:
        return packed_product(self._library, weight, bias)

    def int8_product(self, weight: Tensor, bias: Tensor | None) -> Product | None:
        if not can_multiply_codes(self._library.variant):
            return None
        return PackedInt8Product(Int8Library(self._library), weight, bias)

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
        step = Norm(
            x=x.data_ptr(),
            residual=None if residual is None else residual.data_ptr(),
            weight=None if weight is None else weight.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
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
        if self._normalise(step):
            raise MemoryError("no memory for the rows of a norm")
        return out

    def apply_rows(self, function: Function, x: Tensor, factor: Tensor | None) -> Tensor:
        """Return `function(x) * factor`, both `[num_rows, size]` with rows at the same distances."""
        out = RESULTS.empty(x.shape, x.dtype)
        step = Elementwise(
            x=x.data_ptr(),
            factor=None if factor is None else factor.data_ptr(),
            out=out.data_ptr(),
            stride=x.stride(0),
            num_rows=len(x),
            size=x.shape[1],
            num_threads=torch.get_num_threads(),
            is_bfloat16=x.dtype == torch.bfloat16,
            function=function,
        )
        self._apply(step)
        return out
