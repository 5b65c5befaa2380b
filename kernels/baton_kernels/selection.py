"""Which kernels a process uses: chosen once, at start."""

from __future__ import annotations

import torch

from baton_kernels.interface import Kernels, LayerKernels
from baton_kernels.torch_attention import TorchAttention


def select_kernels(device: torch.device | str) -> Kernels:
    """The fastest kernels that run on `device`."""
    if torch.device(device).type == "cuda":
        # Triton is a dependency of GPU workers only, and decides at its import whether to interpret.
        from baton_kernels.triton_decode import TritonAttention

        return Kernels(attention=TritonAttention(), layers=LayerKernels())
    return Kernels(attention=TorchAttention(), layers=LayerKernels())
