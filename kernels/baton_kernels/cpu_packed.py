"""Linear layers on a CPU with vectors of 16 numbers, by the C++ kernels: weights are packed into panels.

Of bfloat16 they need AVX512-BF16; where the CPU has AMX, oneDNN is left to it. A row's numbers do not depend
on the rows beside it, nor on how many they are.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_void_p
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from baton_kernels.cpu_layers import NOT_GATED, VECTORISED
from baton_kernels.cpu_library import CpuLibrary
from baton_kernels.cpu_selection import load_best
from baton_kernels.cpu_variants import CpuVariant
from baton_kernels.interface import Function

PANEL: Final = 64
"""Outputs side by side in a panel: kPackedPanel in C++."""
_DEPTH: Final = {torch.float32: 1, torch.bfloat16: 2}
"""Neighbours of the inner dimension that lie side by side in a panel, in four bytes."""


class Packed(ctypes.Structure):
    """A linear layer with packed weights. Mirrors that of cpu/packed.h."""

    _fields_ = (
        ("x", c_void_p),
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("out", c_void_p),
        ("x_stride", c_int64),
        ("num_rows", c_int64),
        ("in_features", c_int64),
        ("out_features", c_int64),
        ("num_threads", c_int64),
        ("is_bfloat16", c_int32),
        ("function", c_int32),
    )


class PackedProduct:
    """`x @ weight.T + bias` with a packed copy of the weight.

    `weight` is `[out_features, in_features]` of a type that the build `takes`; of bfloat16, `in_features` is
    even.
    """

    def __init__(self, library: CpuLibrary, weight: Tensor, bias: Tensor | None) -> None:
        self._out_features = len(weight)
        missing = -len(weight) % PANEL
        self._panels = pack(functional.pad(weight, (0, 0, 0, missing)) if missing else weight)
        self._bias = None if bias is None else functional.pad(bias, (0, missing))
        self._multiply = library.loaded.baton_multiply_packed
        self._multiply.argtypes = (c_void_p,)

    @property
    def packed_bytes(self) -> int:
        return self._panels.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        return self._run(x, self._out_features, NOT_GATED)

    def gates(self, function: Function) -> bool:
        """Say whether it has `gated` of that function: the outputs are two halves of whole panels."""
        return self._out_features % (2 * PANEL) == 0 and function in VECTORISED

    def gated(self, function: Function, x: Tensor) -> Tensor:
        """Return `function(gate) * up` `[num_rows, n]` of outputs that are gate and up, rounded once."""
        return self._run(x, self._out_features // 2, function)

    def _run(self, x: Tensor, width: int, function: int) -> Tensor:
        if x.stride(-1) != 1:
            x = x.contiguous()
        num_rows, in_features = x.shape
        out = torch.empty(num_rows, width, dtype=x.dtype)
        step = Packed(
            x=x.data_ptr(),
            panels=self._panels.data_ptr(),
            bias=None if self._bias is None else self._bias.data_ptr(),
            out=out.data_ptr(),
            x_stride=x.stride(0),
            num_rows=num_rows,
            in_features=in_features,
            out_features=self._out_features,
            num_threads=torch.get_num_threads(),
            is_bfloat16=x.dtype == torch.bfloat16,
            function=function,
        )
        if self._multiply(ctypes.addressof(step)):
            raise RuntimeError(f"this build of the kernels does not multiply {x.dtype}")
        return out


def packed_product(weight: Tensor, bias: Tensor | None) -> PackedProduct | None:
    """Return the layer of a weight on a CPU; None where something else is faster, or nothing is built."""
    best = load_best()
    if best is None or not takes(best[0], weight.dtype) or weight.shape[1] % _DEPTH[weight.dtype]:
        return None
    return PackedProduct(best[1], weight, bias)


def takes(variant: CpuVariant, dtype: torch.dtype) -> bool:
    """Say whether a build multiplies weights of `dtype`, and does so faster than oneDNN."""
    if dtype == torch.bfloat16:
        return variant.has_dot and not variant.has_tiles
    return dtype == torch.float32 and variant.num_lanes == 16


def pack(weight: Tensor) -> Tensor:
    """Return the panels of a weight `[n * PANEL, in_features]` as `[n, in_features / depth, PANEL] int32`."""
    numbers = weight.contiguous().view(torch.int32)
    return torch.stack([panel.T for panel in numbers.view(-1, PANEL, numbers.shape[1])])
