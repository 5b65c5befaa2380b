"""The kernels that a process uses, chosen once, at start."""

from __future__ import annotations

import torch

from baton_kernels.cpu_selection import select_cpu_kernels
from baton_kernels.cpu_variants import AUTO
from baton_kernels.interface import Kernels


def select_kernels(
    device: torch.device | str, dtype: torch.dtype = torch.float32, cpu_kernels: str = AUTO
) -> Kernels:
    """Return the kernels that run on `device` with a KV pool of `dtype`; on a CPU those of that name.

    Raises:
        CpuKernelsError: `cpu_kernels` cannot be had.
    """
    if torch.device(device).type == "cuda":
        # Triton is a dependency of GPU workers only, and decides at its import whether to interpret.
        from baton_kernels.triton_attention import TritonAttention
        from baton_kernels.triton_layers import TritonLayers
        from baton_kernels.triton_sampling import TritonSampling

        return Kernels(attention=TritonAttention(), layers=TritonLayers(), sampling=TritonSampling())
    return select_cpu_kernels(dtype, cpu_kernels)
