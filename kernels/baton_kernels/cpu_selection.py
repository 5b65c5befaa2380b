"""Which build of the C++ kernels a CPU computes with: the fastest that it can have, else torch."""

from __future__ import annotations

import logging
from functools import cache

import torch

from baton_kernels.cpu_attention import DTYPES, CpuAttention
from baton_kernels.cpu_build import BuildError, BuildTimeoutError, build
from baton_kernels.cpu_copy import CpuCopy
from baton_kernels.cpu_layers import CpuLayers
from baton_kernels.cpu_library import CpuLibrary
from baton_kernels.cpu_sampling import CpuSampling
from baton_kernels.cpu_variants import CpuVariant, cpu_flags, usable_variants
from baton_kernels.interface import Kernels, LayerKernels
from baton_kernels.torch_attention import TorchAttention
from baton_kernels.torch_sampling import TorchSampling

logger = logging.getLogger(__name__)


def select_cpu_kernels(dtype: torch.dtype) -> Kernels:
    """Return the kernels for a model and a cache of `dtype`; the first call of a user compiles them."""
    loaded = load_best()
    if loaded is None:
        return Kernels(attention=TorchAttention(), layers=LayerKernels(), sampling=TorchSampling())
    variant, library = loaded
    if dtype not in DTYPES:
        return Kernels(attention=TorchAttention(), layers=LayerKernels(), sampling=CpuSampling(library))
    return Kernels(
        attention=CpuAttention(library, is_v_transposed=variant.has_tiles and dtype == torch.bfloat16),
        layers=CpuLayers(library),
        sampling=CpuSampling(library),
    )


def select_copy() -> CpuCopy | None:
    """Return what copies rows in host memory; None where there are no C++ kernels."""
    loaded = load_best()
    return None if loaded is None else CpuCopy(loaded[1])


@cache
def load_best() -> tuple[CpuVariant, CpuLibrary] | None:
    """Return the first variant that this machine builds and runs; None, with a line in the log, for none."""
    reasons = []
    for variant in usable_variants(cpu_flags()):
        try:
            library = CpuLibrary(build(variant))
        except BuildTimeoutError as error:
            reasons.append(str(error))
            break
        except BuildError as error:
            reasons.append(str(error))
            continue
        logger.info("C++ kernels of this CPU: %s", variant.name)
        return variant, library
    logger.warning("no C++ kernels on this CPU, torch is slower: %s", reasons[0])
    return None
