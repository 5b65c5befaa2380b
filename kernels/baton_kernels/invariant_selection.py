"""The kernels of the batch-invariant mode: chosen once, at start, in the place of `selection`'s."""

from __future__ import annotations

import platform

import torch

from baton_kernels.cpu_attention import DTYPES
from baton_kernels.cpu_invariant import InvariantCpuAttention, InvariantCpuLayers
from baton_kernels.cpu_selection import load_build
from baton_kernels.cpu_variants import AUTO
from baton_kernels.interface import Kernels
from baton_kernels.torch_sampling import TorchSampling


class NotInvariantError(Exception):
    """There are no batch-invariant kernels; the message says for what."""


def select_invariant_kernels(
    device: torch.device | str, dtype: torch.dtype, head_dim: int, cpu_kernels: str = AUTO
) -> Kernels:
    """Batch-invariant kernels for `device` and heads of `head_dim`, with a KV pool of `dtype`.

    Raises:
        NotInvariantError: there are none.
        CpuKernelsError: `cpu_kernels` cannot be had.
    """
    if torch.device(device).type == "cuda":
        return _cuda_kernels(head_dim)
    library = load_build(cpu_kernels)
    if library is None:
        raise NotInvariantError("a CPU for which no C++ kernels are built")
    if dtype not in DTYPES:
        raise NotInvariantError(f"{dtype} on a CPU")
    libc = "-".join(platform.libc_ver())
    return Kernels(
        attention=InvariantCpuAttention(library),
        layers=InvariantCpuLayers(library),
        sampling=TorchSampling(),
        numerics=f"{library.name} {libc} torch-{torch.__version__} threads-{torch.get_num_threads()}",
    )


def _cuda_kernels(head_dim: int) -> Kernels:
    # Triton is a dependency of GPU workers only, and decides at its import whether to interpret.
    import triton

    from baton_kernels.triton_attention import MAX_HEAD_DIM
    from baton_kernels.triton_invariant import InvariantTritonAttention, InvariantTritonLayers
    from baton_kernels.triton_sampling import TritonSampling

    if head_dim > MAX_HEAD_DIM:
        raise NotInvariantError(f"heads of {head_dim} numbers on a GPU (at most {MAX_HEAD_DIM})")
    device = torch.cuda.get_device_name().replace(" ", "-")
    return Kernels(
        attention=InvariantTritonAttention(),
        layers=InvariantTritonLayers(),
        sampling=TritonSampling(),
        numerics=f"{device} triton-{triton.__version__} torch-{torch.__version__}",
    )
