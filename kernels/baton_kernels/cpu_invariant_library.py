"""The batch-invariant mode's part of a build of the CPU kernels, as Python calls it. The struct mirrors that
of cpu/product.h.

As in `cpu_library`, arguments are addresses of CPU tensors that the caller keeps alive.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_void_p
from typing import Final

from baton_kernels.cpu_library import CpuLibrary

PANEL: Final = 32
"""Outputs of a linear layer that lie side by side: kPanel in C++."""


class Product(ctypes.Structure):
    """A linear layer."""

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


class InvariantLibrary:
    """Functions of a loaded build."""

    def __init__(self, library: CpuLibrary) -> None:
        self._multiply = library.function("baton_multiply")

    def multiply(self, step: Product) -> None:
        """Mutates `out`.

        Raises: MemoryError.
        """
        if self._multiply(step):
            raise MemoryError("no memory for the rows of a linear layer")
