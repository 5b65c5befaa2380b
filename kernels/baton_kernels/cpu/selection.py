"""The build of the C++ kernels that a process computes with on a CPU: the fastest that the CPU can have, or
one that is asked for by name.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from functools import cache

import torch

from baton_kernels.cpu.attention import DTYPES, CpuAttention
from baton_kernels.cpu.build import BuildError, BuildTimeoutError, UnloadableBuildError, build
from baton_kernels.cpu.copy import CpuCopy
from baton_kernels.cpu.layers import CpuLayers
from baton_kernels.cpu.library import CpuLibrary
from baton_kernels.cpu.onednn import multiplies_bfloat16
from baton_kernels.cpu.sampling import CpuSampling
from baton_kernels.cpu.variants import (
    AUTO,
    AVX2,
    INSTEAD_OF_AUTO,
    TORCH,
    CpuKernelsError,
    CpuVariant,
    cpu_flags,
    require_usable,
    usable_variants,
)
from baton_kernels.interface.kernels import Kernels, LayerKernels
from baton_kernels.reference.torch_attention import TorchAttention
from baton_kernels.reference.torch_sampling import TorchSampling

logger = logging.getLogger(__name__)


def select_cpu_kernels(dtype: torch.dtype, cpu_kernels: str = AUTO) -> Kernels:
    """Return the kernels for a model and a cache of `dtype`; the first call of a user compiles them.

    Raises:
        CpuKernelsError: `cpu_kernels` is none of CPU_KERNELS, or this machine cannot have it.
    """
    library = load_build(cpu_kernels)
    if library is None:
        if dtype == torch.bfloat16 and not multiplies_bfloat16():
            logger.warning("torch emulates bfloat16 on this CPU, prompts above all; dtype=float32 is faster")
        return Kernels(attention=TorchAttention(), layers=LayerKernels(), sampling=TorchSampling())
    if dtype not in DTYPES:
        return Kernels(attention=TorchAttention(), layers=LayerKernels(), sampling=CpuSampling(library))
    is_v_transposed = library.variant.has_tiles and dtype == torch.bfloat16
    return Kernels(
        attention=CpuAttention(library, is_v_transposed=is_v_transposed),
        layers=CpuLayers(library),
        sampling=CpuSampling(library),
    )


def is_fast_in_bfloat16() -> bool:
    """Say whether this CPU multiplies bfloat16, or has vectors in which C++ kernels widen it at no cost."""
    return multiplies_bfloat16() or AVX2.needs <= cpu_flags()


def select_copy(cpu_kernels: str = AUTO) -> CpuCopy | None:
    """Return what copies rows in host memory; None where there are no C++ kernels."""
    library = load_build(cpu_kernels)
    return None if library is None else CpuCopy(library)


def load_build(cpu_kernels: str = AUTO) -> CpuLibrary | None:
    """Return the build of that name, or with "auto" the first that this machine builds and runs.

    The environment's `BATON_CPU_KERNELS` stands in for "auto". None for "torch", and with "auto", with a line
    in the log, where no build can be had.

    Raises:
        CpuKernelsError: another name, or this machine cannot have it.
    """
    if cpu_kernels == AUTO and (instead := os.environ.get(INSTEAD_OF_AUTO)):
        return _load_build(instead, INSTEAD_OF_AUTO)
    return _load_build(cpu_kernels, "cpu_kernels")


@cache
def _load_build(cpu_kernels: str, setting: str) -> CpuLibrary | None:
    """`setting` is the name by which the user asked for it."""
    if cpu_kernels == TORCH:
        logger.info("no C++ kernels, by %s: torch computes", setting)
        return None
    return _load_best() if cpu_kernels == AUTO else _load_named(cpu_kernels, setting)


def _load_best() -> CpuLibrary | None:
    reasons = []
    for variant in usable_variants(cpu_flags()):
        try:
            library = _load(variant)
        except (BuildTimeoutError, UnloadableBuildError) as error:
            reasons.append(str(error))
            break
        except BuildError as error:
            reasons.append(str(error))
            continue
        logger.info("C++ kernels of this CPU: %s", variant.name)
        return library
    logger.warning("no C++ kernels on this CPU, torch is slower: %s", reasons[0])
    return None


def _load_named(name: str, setting: str) -> CpuLibrary:
    variant = require_usable(name, setting, cpu_flags())
    assert variant is not None, "it is neither auto nor torch"
    try:
        library = _load(variant)
        logger.info("C++ kernels of this CPU: %s, by %s", name, setting)
        return library
    except BuildError as error:
        raise CpuKernelsError(
            f"{setting} is {name!r}, which cannot be built here: {error}; allowed: auto, torch"
        ) from error


def _load(variant: CpuVariant) -> CpuLibrary:
    """Build and load a variant, once more if what was built before is damaged."""
    path = build(variant)
    try:
        return CpuLibrary(path, variant)
    except UnloadableBuildError:
        with suppress(OSError):  # a cache that is read-only
            path.unlink()
        return CpuLibrary(build(variant), variant)
