"""Linear layers of float32 on a CPU for few rows, from the weights that oneDNN has packed for many.

Where oneDNN packs a weight into panels, as it does for AVX-512, the C++ kernels read the same memory with
less work for each number.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_int64, c_void_p
from functools import cache
from typing import Final

import torch
from torch import Tensor

from baton_kernels.cpu_library import CpuLibrary

PANEL: Final = 64
"""Outputs side by side in a panel: kPackedPanel in C++."""
MAX_ROWS: Final = 48
"""oneDNN is as fast with more."""
_FLOAT_BYTES: Final = 4


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
        self._multiply.argtypes, self._multiply.restype = (c_void_p,), None
        self.packed_bytes = packed.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        num_rows = len(x)
        if not 0 < num_rows <= MAX_ROWS:
            return self._many(x)
        if x.stride(-1) != 1:
            x = x.contiguous()
        out = torch.empty(num_rows, self._out_features)
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
        )
        self._multiply(ctypes.addressof(step))
        return out


def is_in_panels(packed: Tensor, weight: Tensor) -> bool:
    """Say whether oneDNN packed a float32 `weight` `[out_features, in_features]` into whole panels.

    The first and the last panel are compared; which layout it takes does not depend on the numbers.
    """
    if weight.dtype != torch.float32 or len(weight) % PANEL or not _has_address():
        return False
    if torch.ops.mkldnn._nbytes(packed) != weight.numel() * _FLOAT_BYTES:
        return False
    return all(
        torch.equal(_panel(packed, start, weight.shape[1]), weight[start : start + PANEL].T)
        for start in (0, len(weight) - PANEL)
    )


def _panel(packed: Tensor, start: int, in_features: int) -> Tensor:
    """A copy of the packed weights of outputs from `start` on, `[in_features, PANEL]`."""
    address = _address(packed) + start * in_features * _FLOAT_BYTES
    content = ctypes.string_at(address, PANEL * in_features * _FLOAT_BYTES)
    return torch.frombuffer(bytearray(content), dtype=torch.float32).view(in_features, PANEL)


def _address(packed: Tensor) -> int:
    address: int = torch.ops.mkldnn.data_ptr(packed)
    return address


@cache
def _has_address() -> bool:
    """Say whether this torch tells where a packed weight lies; the operators are private."""
    return all(hasattr(torch.ops.mkldnn, name) for name in ("data_ptr", "_nbytes"))
