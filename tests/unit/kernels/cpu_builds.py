"""Builds of the CPU kernels for tests: what this CPU runs, and the others emulated as far as it can."""

from __future__ import annotations

import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from baton_kernels.cpu_build import build
from baton_kernels.cpu_library import CpuLibrary
from baton_kernels.cpu_variants import (
    AMX,
    AVX2,
    AVX512,
    AVX512_BF16,
    PLAIN,
    CpuVariant,
    cpu_flags,
)

_HEADER: Final = Path(__file__).parent / "cpu_emulation.h"
EMULATED: Final = CpuVariant(
    name="emulated",
    needs=AVX512.needs,
    compiler_flags=(*AVX512.compiler_flags, "-DBATON_BFLOAT16_DOT=1", "-DBATON_TILES=1"),
    num_lanes=16,
    has_tiles=True,
)
"""The sources of AMX and AVX512-BF16, their instructions in software."""
WITHOUT_VNNI: Final = replace(
    AVX2, name="without-vnni", compiler_flags=(*AVX2.compiler_flags, "-DBATON_WITHOUT_VNNI=1")
)
"""What multiplies int8 on a CPU with AVX2 alone, for those that have more too."""

BUILDS: Final = (AMX, AVX512_BF16, AVX512, AVX2, PLAIN, EMULATED)


def load(variant: CpuVariant) -> CpuLibrary:
    """Skips the test, with the reason, where this CPU cannot run the variant."""
    missing = variant.needs - cpu_flags()
    if missing:
        pytest.skip(f"this CPU lacks {', '.join(sorted(missing))}")
    return _load(variant)


@cache
def _load(variant: CpuVariant) -> CpuLibrary:
    if variant is not EMULATED:
        return CpuLibrary(build(variant))
    # The header's text is part of the build's name, which covers flags but not files that they name.
    stamp = f"-DEMULATION={zlib.crc32(_HEADER.read_bytes())}"
    return CpuLibrary(build(variant, extra_flags=("-include", str(_HEADER), stamp)))
