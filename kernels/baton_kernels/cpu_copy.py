"""Copies of rows between arrays in host memory, by the C++ kernels: one call for many rows."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_void_p

import numpy as np
from numpy.typing import NDArray

from baton_kernels.cpu_library import CpuLibrary


class Copy(ctypes.Structure):
    """Mirrors that of cpu/copy.h."""

    _fields_ = (
        ("source", c_void_p),
        ("target", c_void_p),
        ("source_rows", c_void_p),
        ("target_rows", c_void_p),
        ("num_source_rows", c_int64),
        ("num_target_rows", c_int64),
        ("num_rows", c_int64),
        ("row_bytes", c_int64),
        ("is_past_caches", c_int32),
    )


class CpuCopy:
    """Copies rows on the calling thread, without the interpreter's lock."""

    def __init__(self, library: CpuLibrary) -> None:
        self._copy = library.loaded.baton_copy
        self._copy.argtypes = (c_void_p,)

    def __call__(
        self,
        source: NDArray[np.uint8],
        source_rows: NDArray[np.int64],
        target: NDArray[np.uint8],
        target_rows: NDArray[np.int64],
        *,
        past_caches: bool,
    ) -> None:
        """Write rows of `source` to rows of `target`, both contiguous `[rows, row_bytes]` and apart.

        `past_caches` is for what nobody reads soon: writing it takes a third less of the memory's bandwidth.

        Raises:
            IndexError: a row that is not there.
        """
        arrays = (source, source_rows, target, target_rows)
        assert all(array.flags.c_contiguous for array in arrays)
        assert source.shape[1] == target.shape[1]
        assert len(source_rows) == len(target_rows)
        step = Copy(
            source=source.ctypes.data,
            target=target.ctypes.data,
            source_rows=source_rows.ctypes.data,
            target_rows=target_rows.ctypes.data,
            num_source_rows=len(source),
            num_target_rows=len(target),
            num_rows=len(source_rows),
            row_bytes=source.shape[1],
            is_past_caches=past_caches,
        )
        if self._copy(ctypes.addressof(step)):
            raise IndexError(f"a row is not there; allowed: 0 to {len(source) - 1}, 0 to {len(target) - 1}")
