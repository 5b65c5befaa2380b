"""One build of the CPU kernels, as Python calls it. The structs mirror those of cpu/decode.h,
cpu/attend_blocks.h, cpu/rows.h and cpu/rotate.h.

Calls return when their work is done, on `num_threads` threads, without the interpreter's lock. Arguments are
addresses of CPU tensors, which the caller keeps alive and in the shapes that the structs state.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p
from pathlib import Path

from baton_kernels.cpu_build import BuildError
from baton_kernels.cpu_variants import CpuVariant
from baton_kernels.recorded_calls import NativeFunction


class Layer(ctypes.Structure):
    """One layer's part of the pool."""

    _fields_ = (
        ("k", c_void_p),
        ("v", c_void_p),
        ("block_stride", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("block_size", c_int64),
        ("element_bytes", c_int32),
        ("is_v_transposed", c_int32),
    )


class Decode(ctypes.Structure):
    """Attention of one-token slices."""

    _fields_ = (
        ("layer", Layer),
        ("q", c_void_p),
        ("out", c_void_p),
        ("tables", c_void_p),
        ("lengths", c_void_p),
        ("tokens", c_void_p),
        ("seqs", c_void_p),
        ("q_stride", c_int64),
        ("num_decodes", c_int64),
        ("table_stride", c_int64),
        ("group_size", c_int64),
        ("window", c_int64),
        ("num_threads", c_int64),
        ("is_q_bfloat16", c_int32),
        ("scale", c_float),
        ("soft_cap", c_float),
    )


class Attend(ctypes.Structure):
    """Attention of the slices of a step that have `least_tokens` or more."""

    _fields_ = (
        ("layer", Layer),
        ("q", c_void_p),
        ("out", c_void_p),
        ("tables", c_void_p),
        ("lengths", c_void_p),
        ("query_start", c_void_p),
        ("q_stride", c_int64),
        ("num_seqs", c_int64),
        ("table_stride", c_int64),
        ("group_size", c_int64),
        ("window", c_int64),
        ("least_tokens", c_int64),
        ("num_threads", c_int64),
        ("is_q_bfloat16", c_int32),
        ("scale", c_float),
        ("soft_cap", c_float),
    )


class Write(ctypes.Structure):
    """New tokens, put into their slots."""

    _fields_ = (
        ("layer", Layer),
        ("k", c_void_p),
        ("v", c_void_p),
        ("slots", c_void_p),
        ("k_stride", c_int64),
        ("v_stride", c_int64),
        ("num_tokens", c_int64),
        ("num_threads", c_int64),
    )


class Rotate(ctypes.Structure):
    """Rotation of queries and keys, and new tokens put into their slots."""

    _fields_ = (
        ("write", Write),
        ("q", c_void_p),
        ("k", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("q_out", c_void_p),
        ("k_out", c_void_p),
        ("q_stride", c_int64),
        ("k_stride", c_int64),
        ("angle_stride", c_int64),
        ("num_q_heads", c_int64),
        ("rotary_dim", c_int64),
    )


class Read(ctypes.Structure):
    """Consecutive tokens of one sequence, copied out of the pool."""

    _fields_ = (
        ("layer", Layer),
        ("k", c_void_p),
        ("v", c_void_p),
        ("table", c_void_p),
        ("first", c_int64),
        ("num_tokens", c_int64),
        ("num_threads", c_int64),
    )


class CpuLibrary:
    """A loaded build.

    Raises:
        BuildError: the file is damaged or this process may not use what it needs.
    """

    def __init__(self, path: Path, variant: CpuVariant) -> None:
        self.variant = variant
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            path.unlink(missing_ok=True)  # the next start builds it again
            raise BuildError(f"{path} cannot be loaded: {error}") from error
        if library.baton_prepare() != 0:
            raise BuildError(f"{path.name}: the kernel refuses the tile registers")
        self.loaded = library
        self.name = path.stem
        """The variant, and a hash of the sources, the flags and the compiler."""
        self._decode, self._attend = self.function("baton_decode"), self.function("baton_attend")
        self._write, self._read = self.function("baton_write"), self.function("baton_read")
        self._rotate = self.function("baton_rotate")

    def function(self, name: str) -> NativeFunction:
        """A function of the build, as calls of a forward pass need it: they can be recorded."""
        return NativeFunction(self.loaded, name)

    def decode(self, step: Decode) -> None:
        """Mutates the rows `tokens` of `out`.

        Raises: MemoryError; RuntimeError when this build does not read the layer's layout.
        """
        _check_attention(self._decode(step))

    def attend(self, step: Attend) -> None:
        """Mutates the rows of `out` that belong to the slices that are taken.

        Raises: MemoryError; RuntimeError when this build does not read the layer's layout.
        """
        _check_attention(self._attend(step))

    def write(self, step: Write) -> None:
        """Mutates the pool at `slots` of the layer."""
        self._write(step)

    def rotate(self, step: Rotate) -> None:
        """Mutates `q_out`, `k_out`, and the pool at `slots` of the layer."""
        self._rotate(step)

    def read(self, step: Read) -> None:
        """Mutates `k` and `v`."""
        self._read(step)


def _check_attention(status: int) -> None:
    match status:
        case 1:
            raise RuntimeError("this build of the CPU kernels does not read the layout of the KV pool")
        case 2:
            raise MemoryError("no memory for the partial results of attention")
