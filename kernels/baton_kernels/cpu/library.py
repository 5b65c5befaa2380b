"""A loaded build of the CPU kernels. Calls return when their work is done, without the interpreter's lock."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from ctypes import c_int64
from pathlib import Path
from typing import Final, NamedTuple

import torch

from baton_kernels.cpu.build import BuildError, UnloadableBuildError
from baton_kernels.cpu.c_struct import layout
from baton_kernels.cpu.graph_replay import NativeKernel
from baton_kernels.cpu.structs import KERNELS, STRUCTS, Status
from baton_kernels.cpu.variants import CpuVariant

_ELF_HEADER_BYTES: Final = 64
_SECTIONS: Final = struct.Struct("<Q10xHH")
"""In the header of a 64-bit ELF file: where the table of sections is, the bytes of an entry, and entries."""
_SECTIONS_AT: Final = 40


class PackedLayout(NamedTuple):
    """The layout of a linear layer's packed weight."""

    panel_width: int
    """Outputs that lie side by side."""
    depth: int
    """Neighbouring inputs that lie side by side for each output."""
    input_multiple: int
    """Inputs are padded to a multiple of it."""


class CpuLibrary:
    """A loaded build.

    Raises:
        UnloadableBuildError: the system does not load the file.
        BuildError: its structs differ from those here, or this process may not use what it needs.
    """

    def __init__(self, path: Path, variant: CpuVariant) -> None:
        self.variant = variant
        try:
            if _is_cut_short(path):
                raise OSError("it is cut short")
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise UnloadableBuildError(f"{path} cannot be loaded: {error}") from error
        _check_layout(self._library, path.name)
        if self._library.baton_prepare() != 0:
            raise BuildError(f"{path.name}: the kernel refuses the tile registers")
        self.name = path.stem
        """The variant, and a hash of the sources, the flags and the compiler."""
        self._kernels = {struct: NativeKernel(self._library, name) for struct, name in KERNELS.items()}

    def packed_layout(self, dtype: torch.dtype) -> PackedLayout:
        """Return the layout of packed weights of `dtype`."""
        return _read(self._library.baton_packed_layout, dtype == torch.bfloat16)

    def quantized_layout(self, dtype: torch.dtype) -> PackedLayout:
        """Return the layout of the codes of quantized weights for rows of `dtype`."""
        return _read(self._library.baton_quantized_layout, dtype == torch.bfloat16)

    def int8_layout(self) -> PackedLayout:
        """Return the layout of weights of 8-bit integers that are multiplied with such rows."""
        return _read(self._library.baton_int8_layout)

    def run(self, args: ctypes.Structure) -> None:
        """Run the kernel that takes this struct; mutates the arrays that the struct calls results.

        Raises:
            RuntimeError: this build does not read the layout of the KV pool.
            MemoryError: there is no memory for intermediate results.
            IndexError: a row is out of range; nothing is copied.
            TimeoutError: a rank did not come.
        """
        match self._kernels[type(args)](args):
            case Status.UNSUPPORTED_LAYOUT:
                raise RuntimeError("this build of the CPU kernels does not read the layout of the KV pool")
            case Status.OUT_OF_MEMORY:
                raise MemoryError(f"no memory for {KERNELS[type(args)]}")
            case Status.ROW_OUT_OF_RANGE:
                raise IndexError("a row is out of range")
            case Status.RANK_LOST:
                raise TimeoutError("a rank did not come")


def _is_cut_short(path: Path) -> bool:
    """Say whether a file ends before the table of sections does, with which linkers end it.

    The system maps such a file all the same, and ends a process that reads what is missing by SIGBUS.
    """
    with path.open("rb") as file:
        header = file.read(_ELF_HEADER_BYTES)
    if len(header) < _ELF_HEADER_BYTES:
        return True
    table, section_bytes, num_sections = _SECTIONS.unpack_from(header, _SECTIONS_AT)
    return bool(table + section_bytes * num_sections > path.stat().st_size)


def _read(write_layout: Callable[..., object], *args: object) -> PackedLayout:
    layout = (c_int64 * 3)()
    write_layout(*args, layout)
    return PackedLayout(*layout)


def _check_layout(library: ctypes.CDLL, name: str) -> None:
    """Compare the layout of structs in a build with that of ctypes.

    Raises:
        BuildError: they differ.
    """
    library.baton_struct_layout.restype = ctypes.POINTER(c_int64)
    found = library.baton_struct_layout()
    expected = list(layout(STRUCTS))
    if found[0] != len(expected):
        raise BuildError(f"{name}: its structs have {found[0]} sizes and offsets; expected {len(expected)}")
    for index, (what, _, value) in enumerate(expected, start=1):
        if found[index] != value:
            raise BuildError(f"{name}: {what} is {found[index]} bytes; expected {value}")
