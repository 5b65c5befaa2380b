"""Which kernels a process uses: chosen once, at start."""

from __future__ import annotations

import torch

from baton_kernels.cpu_selection import select_cpu_kernels
from baton_kernels.interface import Kernels


def select_kernels(device: torch.device | str, dtype: torch.dtype = torch.float32) -> Kernels:
    """The fastest kernels that run on `device` with a KV pool of `dtype`."""
    if torch.device(device).type == "cuda":
        # Triton is a dependency of GPU workers only, and decides at its import whether to interpret.
        from baton_kernels.triton_attention import TritonAttention
        from baton_kernels.triton_layers import TritonLayers
        from baton_kernels.triton_sampling import TritonSampling

        return Kernels(attention=TritonAttention(), layers=TritonLayers(), sampling=TritonSampling())
    return select_cpu_kernels(dtype)
