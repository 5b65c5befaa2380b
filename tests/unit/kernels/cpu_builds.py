"""Builds of the CPU kernels for tests: what this CPU runs natively, and the others emulated."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

import pytest

from baton_kernels.cpu.build import build
from baton_kernels.cpu.library import CpuLibrary
from baton_kernels.cpu.variants import EMULATED, VARIANTS, CpuVariant, cpu_flags

BUILDS: Final = (*VARIANTS, *EMULATED)
EMULATED_AMX: Final = EMULATED[0]
"""The build with all paths of the sources: tiles, pairs of bfloat16, vectors of 16 numbers."""

EMPTY = 'case "$1" in --version) exit 0;; esac; for word; do :; done; : >"$word"'
"""Writes an empty file, the last word of its command."""

builds = pytest.mark.parametrize("variant", BUILDS, ids=lambda variant: variant.name)


def make_compiler(folder: Path, script: str) -> Path:
    """Write a shell script that stands in for a compiler."""
    compiler = folder / "compiler"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    return compiler


def load(variant: CpuVariant) -> CpuLibrary:
    """Skips the test, with the reason, where this CPU cannot run the variant, or where it need not be
    emulated.
    """
    missing = variant.needs - cpu_flags()
    if missing:
        pytest.skip(f"this CPU lacks {', '.join(sorted(missing))}")
    if variant in EMULATED and variant is not EMULATED_AMX and _native(variant).needs <= cpu_flags():
        pytest.skip(f"this CPU runs {_native(variant).name} itself")
    return _load(variant)


def _native(variant: CpuVariant) -> CpuVariant:
    return VARIANTS[EMULATED.index(variant)]


@cache
def _load(variant: CpuVariant) -> CpuLibrary:
    return CpuLibrary(build(variant), variant)
