"""The batch-invariant mode's part of a build of the CPU kernels, as Python calls it. The structs mirror those
of cpu/product.h and cpu/attend_blocks.h.

As in `cpu_library`, arguments are addresses of CPU tensors that the caller keeps alive.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p
from typing import Final

from baton_kernels.cpu_library import CpuLibrary, Layer

PANEL: Final = 32
"""Outputs of a linear layer that lie side by side, and tokens of a split of the keys: kPanel in C++."""


class Attend(ctypes.Structure):
    """Attention of all slices of a step."""

    _fields_ = (
        ("layer", Layer),
        ("q", c_void_p),
        ("out", c_void_p),
        ("tables", c_void_p),
        ("lengths", c_void_p),
        ("query_start", c_void_p),
        ("q_stride", c_int64),
        ("num_seqs", c_int64),
        ("max_blocks", c_int64),
        ("group_size", c_int64),
        ("window", c_int64),
        ("num_threads", c_int64),
        ("is_q_bfloat16", c_int32),
        ("scale", c_float),
        ("soft_cap", c_float),
    )


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
    """Functions of a loaded build. Each mutates the `out` of its argument and may raise MemoryError."""

    def __init__(self, library: CpuLibrary) -> None:
        loaded = library.loaded
        self._attend, self._multiply = loaded.baton_attend, loaded.baton_multiply
        for function in (self._attend, self._multiply):
            function.argtypes = (c_void_p,)

    def attend(self, step: Attend) -> None:
        _require_memory(self._attend(ctypes.addressof(step)))

    def multiply(self, step: Product) -> None:
        _require_memory(self._multiply(ctypes.addressof(step)))


def _require_memory(status: int) -> None:
    if status:
        raise MemoryError("no memory for what a batch-invariant kernel works on")
