"""The builds of the CPU kernels: one per instruction set, from the sources in cpu/sources.

AVX512-BF16 multiplies pairs of bfloat16 in linear layers and in attention; AMX computes linear layers of
bfloat16 and of 8-bit integers, and decode attention over a bfloat16 cache, and wants V transposed inside
its blocks. The others widen bfloat16 and compute in float32.

Each build with vectors of 16 numbers also exists emulated, in plain C++ with AVX2: the same layouts and
paths, slowly, on CPUs that lack the instructions. The tests run every path, natively where the CPU can, else
emulated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final


class CpuKernelsError(Exception):
    """The kernels that are asked for by name cannot be had; the message says why, and what can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuVariant:
    """One build."""

    name: str
    needs: frozenset[str] = frozenset()
    """CPU flags, by the kernel's names."""
    compiler_flags: tuple[str, ...]
    num_lanes: int
    """Numbers of four bytes in a vector."""
    has_dot: bool = False
    """True if it multiplies pairs of bfloat16."""
    has_tiles: bool = False
    """True if it reads bfloat16 caches with V transposed inside a block, `[head_dim, block_size]`."""


_DOT: Final = "BATON_BFLOAT16_DOT=1"


def _variant(name: str, needs: str, num_lanes: int, *macros: str, has_tiles: bool = False) -> CpuVariant:
    machine = [flag.replace("amx_", "amx-").replace("avx512_", "avx512") for flag in needs.split()]
    defined = (f"BATON_LANES={num_lanes}", *macros)
    flags = (*(f"-D{macro}" for macro in defined), *(f"-m{flag}" for flag in machine))
    return CpuVariant(
        name=name,
        needs=frozenset(needs.split()),
        compiler_flags=flags,
        num_lanes=num_lanes,
        has_dot=_DOT in macros,
        has_tiles=has_tiles,
    )


def _emulated(variant: CpuVariant) -> CpuVariant:
    """The same paths on a CPU with AVX2; -O1 halves the time that the compiler takes."""
    defined = [flag for flag in variant.compiler_flags if flag.startswith("-D")]
    return replace(
        variant,
        name=f"{variant.name}-emulated",
        needs=AVX2.needs,
        compiler_flags=(*defined, "-DBATON_EMULATED=1", *(f"-m{flag}" for flag in sorted(AVX2.needs)), "-O1"),
    )


_AVX512: Final = "avx2 fma avx512f avx512bw avx512dq avx512vl"

AMX: Final = _variant(
    "amx",
    f"{_AVX512} avx512_bf16 amx_tile amx_bf16 amx_int8",
    16,
    _DOT,
    "BATON_TILES=1",
    has_tiles=True,
)
AVX512_BF16: Final = _variant("avx512-bf16", f"{_AVX512} avx512_bf16", 16, _DOT)
AVX512: Final = _variant("avx512", _AVX512, 16)
AVX2: Final = _variant("avx2", "avx2 fma", 8)
PLAIN: Final = _variant("plain", "", 4)
VARIANTS: Final = (AMX, AVX512_BF16, AVX512, AVX2, PLAIN)
"""Fastest first."""
EMULATED: Final = tuple(_emulated(variant) for variant in VARIANTS if variant.num_lanes == 16)

AUTO: Final = "auto"
TORCH: Final = "torch"
INSTEAD_OF_AUTO: Final = "BATON_CPU_KERNELS"
"""The variable of the environment that stands in for "auto"."""
CPU_KERNELS: Final = (AUTO, *(variant.name for variant in (*VARIANTS, *EMULATED)), TORCH)
"""Names that users ask for a build by: the fastest that the CPU can have, one of these, or none."""


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Return what this CPU can do and the kernel lets programs use; empty where it does not say."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return frozenset(value.split())
    return frozenset()


def usable_variants(
    flags: frozenset[str], variants: tuple[CpuVariant, ...] = VARIANTS
) -> tuple[CpuVariant, ...]:
    """The `variants` that run on a CPU with `flags`, in their order."""
    return tuple(variant for variant in variants if variant.needs <= flags)


def require_usable(name: str, setting: str, flags: frozenset[str]) -> CpuVariant | None:
    """Return the build of that name for a CPU with `flags`, or None for "auto" and "torch".

    `setting` is what named it.

    Raises:
        CpuKernelsError: the CPU lacks the instructions, or there is no such build.
    """
    if name in (AUTO, TORCH):
        return None
    usable = {variant.name: variant for variant in usable_variants(flags, (*VARIANTS, *EMULATED))}
    if name not in usable:
        raise CpuKernelsError(
            f"{setting} is {name!r}; allowed on this CPU: {', '.join((AUTO, *usable, TORCH))}"
        )
    return usable[name]
