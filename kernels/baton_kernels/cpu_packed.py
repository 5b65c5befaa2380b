"""Linear layers on a CPU by the C++ kernels: weights are packed into panels of outputs.

bfloat16 is multiplied in pairs with AVX512-BF16 and widened without; the AMX build leaves it to oneDNN. A
row's numbers do not depend on the rows beside it, nor on how many they are.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_void_p
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from baton_kernels.cpu_library import CpuLibrary
from baton_kernels.cpu_memory import RESULTS
from baton_kernels.cpu_variants import CpuVariant
from baton_kernels.interface import NOT_GATED, VECTORISED, Function

MIN_PACKED_ELEMENTS: Final = 1 << 12
"""Weights below this gain nothing from packing."""
_SIGNLESS: Final = {2: torch.int16, 4: torch.int32}
"""By the size of what lies side by side in a panel for one output, in bytes."""


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

    `weight` is `[out_features, in_features]`, float32 or bfloat16; `in_features` is a multiple of `depth_of`.
    """

    def __init__(self, library: CpuLibrary, weight: Tensor, bias: Tensor | None) -> None:
        self._out_features = len(weight)
        self._panel: int = library.loaded.baton_packed_panel()
        depth = depth_of(library, weight.dtype)
        self._is_widened = weight.dtype == torch.bfloat16 and depth == 1
        missing = -len(weight) % self._panel
        padded = functional.pad(weight, (0, 0, 0, missing)) if missing else weight
        self._panels = pack(padded, self._panel, depth)
        self._bias = None if bias is None else functional.pad(bias, (0, missing))
        self._multiply = library.function("baton_multiply_packed")

    @property
    def packed_bytes(self) -> int:
        return self._panels.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        return self._run(x, self._out_features, NOT_GATED)

    def gates(self, function: Function) -> bool:
        """Say whether it has `gated` of that function: the outputs are two halves of whole panels."""
        return self._out_features % (2 * self._panel) == 0 and function in VECTORISED

    def gated(self, function: Function, x: Tensor) -> Tensor:
        """Return `function(gate) * up` `[num_rows, n]` of outputs that are gate and up, rounded once."""
        return self._run(x, self._out_features // 2, function)

    def _run(self, x: Tensor, width: int, function: int) -> Tensor:
        out = RESULTS.empty((len(x), width), x.dtype)
        if self._is_widened:
            x = x.float()
        if x.stride(-1) != 1:
            x = x.contiguous()
        num_rows, in_features = x.shape
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
            is_bfloat16=out.dtype == torch.bfloat16,
            function=function,
        )
        self._multiply(step)
        return out


def packed_product(library: CpuLibrary, weight: Tensor, bias: Tensor | None) -> PackedProduct | None:
    """Return the layer of a weight on a CPU; None where something else is faster."""
    if not takes(library.variant, weight) or weight.shape[1] % depth_of(library, weight.dtype):
        return None
    return PackedProduct(library, weight, bias)


def takes(variant: CpuVariant, weight: Tensor) -> bool:
    """Say whether a build multiplies a weight, and does so faster than torch.

    A build without bfloat16 arithmetic takes bfloat16 of any size: torch would convert it in each product.
    """
    is_large = weight.numel() >= MIN_PACKED_ELEMENTS
    if weight.device.type != "cpu":
        return False
    if weight.dtype == torch.bfloat16:
        return not variant.has_tiles and (is_large or not variant.has_dot)
    return weight.dtype == torch.float32 and variant.num_lanes >= 8 and is_large


def depth_of(library: CpuLibrary, dtype: torch.dtype) -> int:
    """Return how many neighbours of the inner dimension lie side by side in a panel of `dtype`."""
    depth: int = library.loaded.baton_packed_depth(dtype == torch.bfloat16)
    return depth


def pack(weight: Tensor, panel: int, depth: int) -> Tensor:
    """Return the panels of a weight `[n * panel, in_features]`: `[n, in_features / depth, panel]` of integers
    that are `depth` neighbours each.
    """
    numbers = weight.contiguous().view(_SIGNLESS[weight.element_size() * depth])
    return torch.stack([rows.T for rows in numbers.view(-1, panel, numbers.shape[1])])
