"""Linear layers on a CPU for few rows, from the weights that oneDNN has packed for many.

Where oneDNN packs a weight into panels, as it does for AVX-512, the C++ kernels read the same memory with
less work for each number. Of bfloat16 they need AVX512-BF16; where the CPU has AMX, oneDNN is left to it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_int32, c_int64, c_void_p
from functools import cache
from typing import Final

import torch
from torch import Tensor

from baton_kernels.cpu_library import CpuLibrary
from baton_kernels.cpu_variants import CpuVariant

PANEL: Final = 64
"""Outputs side by side in a panel: kPackedPanel in C++."""
MAX_ROWS: Final = 192
"""oneDNN is as fast with more; kFewRows in C++."""
_DEPTH: Final = {torch.float32: 1, torch.bfloat16: 2}
"""Neighbours of the inner dimension that lie side by side in a panel."""


class FewRows(ctypes.Structure):
    """A linear layer with packed weights. Mirrors that of cpu/few_rows.h."""

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
    )


class FewRowsProduct:
    """`x @ weight.T + bias` from a packed weight: here up to `MAX_ROWS` rows, by `many` beyond."""

    def __init__(
        self,
        library: CpuLibrary,
        packed: Tensor,
        shape: torch.Size,
        bias: Tensor | None,
        many: Callable[[Tensor], Tensor],
    ) -> None:
        self._packed = packed
        self._panels = _address(packed)
        self._out_features, self._in_features = shape
        self._bias = None if bias is None else bias.contiguous()
        self._many = many
        self._multiply = library.loaded.baton_multiply_few_rows
        self._multiply.argtypes = (c_void_p,)
        self.packed_bytes = packed.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        num_rows = len(x)
        if not 0 < num_rows <= MAX_ROWS:
            return self._many(x)
        if x.stride(-1) != 1:
            x = x.contiguous()
        out = torch.empty(num_rows, self._out_features, dtype=x.dtype)
        step = FewRows(
            x=x.data_ptr(),
            panels=self._panels,
            bias=None if self._bias is None else self._bias.data_ptr(),
            out=out.data_ptr(),
            x_stride=x.stride(0),
            num_rows=num_rows,
            in_features=self._in_features,
            out_features=self._out_features,
            num_threads=torch.get_num_threads(),
            is_bfloat16=x.dtype == torch.bfloat16,
        )
        if self._multiply(ctypes.addressof(step)):
            raise RuntimeError(f"this build of the kernels does not multiply {num_rows} rows of {x.dtype}")
        return out


def takes_few_rows(variant: CpuVariant, dtype: torch.dtype) -> bool:
    """Say whether a build multiplies weights of `dtype` for few rows, and does so faster than oneDNN."""
    return dtype == torch.float32 or (dtype == torch.bfloat16 and variant.has_dot and not variant.has_tiles)


def is_in_panels(packed: Tensor, weight: Tensor) -> bool:
    """Say whether oneDNN packed a `weight` `[out_features, in_features]` into whole panels.

    The first and the last panel are compared; which layout it takes does not depend on the numbers.
    """
    depth = _DEPTH.get(weight.dtype)
    if depth is None or len(weight) % PANEL or weight.shape[1] % depth or not _has_address():
        return False
    if torch.ops.mkldnn._nbytes(packed) != weight.nbytes:
        return False
    return all(
        torch.equal(_panel(packed, start, weight), weight[start : start + PANEL])
        for start in (0, len(weight) - PANEL)
    )


def _panel(packed: Tensor, start: int, weight: Tensor) -> Tensor:
    """A copy of the packed weights of outputs from `start` on, `[PANEL, in_features]` as in `weight`."""
    depth, row_bytes = _DEPTH[weight.dtype], weight.shape[1] * weight.element_size()
    content = ctypes.string_at(_address(packed) + start * row_bytes, PANEL * row_bytes)
    numbers = torch.frombuffer(bytearray(content), dtype=weight.dtype)
    return numbers.view(-1, PANEL, depth).transpose(0, 1).reshape(PANEL, -1)


def _address(packed: Tensor) -> int:
    address: int = torch.ops.mkldnn.data_ptr(packed)
    return address


@cache
def _has_address() -> bool:
    """Say whether this torch tells where a packed weight lies; the operators are private."""
    return all(hasattr(torch.ops.mkldnn, name) for name in ("data_ptr", "_nbytes"))
