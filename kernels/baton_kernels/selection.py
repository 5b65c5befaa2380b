"""Which kernels a process uses: chosen once, at start."""

from __future__ import annotations

import torch

from baton_kernels.interface import AttentionKernels
from baton_kernels.torch_attention import TorchAttention


def select_kernels(device: torch.device | str) -> AttentionKernels:
    """The fastest kernels that run on `device`."""
    if torch.device(device).type == "cuda":
        # Triton is a dependency of GPU workers only, and decides at its import whether to interpret.
        from baton_kernels.triton_decode import TritonAttention

        return TritonAttention()
    return TorchAttention()
