"""The part of a build of the CPU kernels that computes in integers of 8 bits, as Python calls it. The structs
mirror those of cpu/quantize.h and cpu/int8_product.h.

As in `cpu_library`, arguments are addresses of CPU tensors that the caller keeps alive.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_void_p

from baton_kernels.cpu_library import CpuLibrary


class Quantize(ctypes.Structure):
    """Rows, turned into integers."""

    _fields_ = (
        ("x", c_void_p),
        ("codes", c_void_p),
        ("scales", c_void_p),
        ("x_stride", c_int64),
        ("num_rows", c_int64),
        ("size", c_int64),
        ("num_threads", c_int64),
        ("is_bfloat16", c_int32),
    )


class Int8Product(ctypes.Structure):
    """A linear layer."""

    _fields_ = (
        ("x", c_void_p),
        ("panels", c_void_p),
        ("offsets", c_void_p),
        ("scales", c_void_p),
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


class Int8Library:
    """Functions of a loaded build."""

    def __init__(self, library: CpuLibrary) -> None:
        self._quantize, self._multiply = (
            library.function("baton_quantize"),
            library.function("baton_multiply_int8"),
        )

    def quantize(self, step: Quantize) -> None:
        """Mutates `codes` and `scales`."""
        self._quantize(step)

    def multiply(self, step: Int8Product) -> None:
        """Mutates `out`. The CPU must have AVX2.

        Raises: MemoryError.
        """
        if self._multiply(step):
            raise MemoryError("no memory for the codes of a linear layer's rows")
