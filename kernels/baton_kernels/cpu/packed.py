"""Linear layers on a CPU by the C++ kernels: weights are packed into panels of outputs.

bfloat16 is multiplied in tiles with AMX, in pairs with AVX512-BF16, and widened without. A row's numbers do
not depend on the rows beside it, nor on how many they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from baton_kernels.cpu.c_struct import address_of
from baton_kernels.cpu.library import CpuLibrary
from baton_kernels.cpu.linear_structs import PackArgs, PackedLinearArgs
from baton_kernels.cpu.memory import RESULTS, WEIGHTS
from baton_kernels.cpu.variants import CpuVariant
from baton_kernels.interface.kernels import NOT_GATED, VECTORISED, Function

MIN_PACKED_ELEMENTS: Final = 1 << 12
"""Weights below this gain nothing from packing."""
_SIGNLESS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32}
"""By the size of what lies side by side in a panel for one output, in bytes."""


class PanelProduct(ABC):
    """A layer whose weight lies in panels of outputs."""

    _out_features: int
    _panel_width: int

    def __call__(self, x: Tensor) -> Tensor:
        return self._run(x, self._out_features, NOT_GATED)

    def gates(self, function: Function) -> bool:
        """Say whether it has `gated` of that function: the outputs are two halves of whole panels."""
        return self._out_features % (2 * self._panel_width) == 0 and function in VECTORISED

    def gated(self, function: Function, x: Tensor) -> Tensor:
        """Return `function(gate) * up` `[num_rows, n]` of outputs that are gate and up, rounded once."""
        return self._run(x, self._out_features // 2, function)

    @abstractmethod
    def _run(self, x: Tensor, width: int, function: int) -> Tensor:
        """Return `[num_rows, width]`; `function` is a `Function` or `NOT_GATED`."""


class PackedProduct(PanelProduct):
    """`x @ weight.T + bias` with a packed copy of the weight.

    `weight` is `[out_features, in_features]`, float32 or bfloat16.
    """

    def __init__(self, library: CpuLibrary, weight: Tensor, bias: Tensor | None) -> None:
        self._out_features = len(weight)
        self._library = library
        layout = library.packed_layout(weight.dtype)
        self._panel_width = layout.panel_width
        self._is_widened = weight.dtype == torch.bfloat16 and layout.depth == 1
        num_missing = -len(weight) % layout.panel_width
        self._num_padded = -weight.shape[1] % layout.input_multiple
        padded = weight
        if self._num_padded or num_missing:
            padded = functional.pad(weight, (0, self._num_padded, 0, num_missing))
        self._packed_weight = pack(library, padded, layout.panel_width, layout.depth)
        self._bias = None if bias is None else functional.pad(bias, (0, num_missing))

    @property
    def packed_bytes(self) -> int:
        return self._packed_weight.nbytes

    def _run(self, x: Tensor, width: int, function: int) -> Tensor:
        out = RESULTS.empty((len(x), width), x.dtype)
        if self._is_widened:
            x = x.float()
        if self._num_padded:
            x = functional.pad(x, (0, self._num_padded))
        if x.stride(-1) != 1:
            x = x.contiguous()
        num_rows, in_features = x.shape
        args = PackedLinearArgs(
            x=x.data_ptr(),
            packed_weight=self._packed_weight.data_ptr(),
            bias=address_of(self._bias),
            out=out.data_ptr(),
            x_stride=x.stride(0),
            num_rows=num_rows,
            in_features=in_features,
            out_features=self._out_features,
            num_threads=torch.get_num_threads(),
            is_bfloat16=out.dtype == torch.bfloat16,
            function=function,
        )
        self._library.run(args)
        return out


def packed_product(library: CpuLibrary, weight: Tensor, bias: Tensor | None) -> PackedProduct | None:
    """Return the layer of a weight on a CPU; None where something else is faster."""
    if not takes(library.variant, weight):
        return None
    if weight.shape[1] % library.packed_layout(weight.dtype).input_multiple:
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
        return is_large or not variant.has_dot
    return weight.dtype == torch.float32 and variant.num_lanes >= 8 and is_large


def pack(library: CpuLibrary, weight: Tensor, panel_width: int, depth: int) -> Tensor:
    """Pack a weight `[n * panel_width, in_features]` into `[n, in_features / depth, panel_width]` integers of
    `depth` neighbours each.
    """
    numbers = weight.contiguous().view(_SIGNLESS[weight.element_size() * depth])
    num_rows, num_columns = numbers.shape
    packed = WEIGHTS.empty((num_rows // panel_width, num_columns, panel_width), numbers.dtype)
    args = PackArgs(
        source=numbers.data_ptr(),
        target=packed.data_ptr(),
        num_panels=len(packed),
        panel_width=panel_width,
        num_columns=num_columns,
        unit_bytes=numbers.element_size(),
        num_threads=torch.get_num_threads(),
    )
    library.run(args)
    return packed
