"""The kernels that a process uses, chosen once, at start."""

from __future__ import annotations

import platform

import torch

from baton_kernels.cpu.attention import DTYPES
from baton_kernels.cpu.invariant import InvariantCpuAttention, InvariantCpuLayers
from baton_kernels.cpu.sampling import CpuSampling
from baton_kernels.cpu.selection import load_build, select_cpu_kernels
from baton_kernels.cpu.variants import AUTO
from baton_kernels.interface.kernels import Kernels


def select_kernels(
    device: torch.device | str, dtype: torch.dtype = torch.float32, cpu_kernels: str = AUTO
) -> Kernels:
    """Return the kernels that run on `device` with a KV pool of `dtype`; on a CPU those of that name.

    Raises:
        CpuKernelsError: `cpu_kernels` cannot be had.
    """
    if torch.device(device).type == "cuda":
        # Triton is a dependency of GPU workers only, and decides at its import whether to interpret.
        from baton_kernels.triton.attention import TritonAttention
        from baton_kernels.triton.layers import TritonLayers
        from baton_kernels.triton.sampling import TritonSampling

        return Kernels(attention=TritonAttention(), layers=TritonLayers(), sampling=TritonSampling())
    return select_cpu_kernels(dtype, cpu_kernels)


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
        sampling=CpuSampling(library),
        numerics=f"{library.name} {libc} torch-{torch.__version__} threads-{torch.get_num_threads()}",
    )


def _cuda_kernels(head_dim: int) -> Kernels:
    # Triton is a dependency of GPU workers only, and decides at its import whether to interpret.
    import triton

    from baton_kernels.triton.attention import MAX_HEAD_DIM
    from baton_kernels.triton.invariant import InvariantTritonAttention, InvariantTritonLayers
    from baton_kernels.triton.sampling import TritonSampling

    if head_dim > MAX_HEAD_DIM:
        raise NotInvariantError(f"heads of {head_dim} numbers on a GPU (at most {MAX_HEAD_DIM})")
    device = torch.cuda.get_device_name().replace(" ", "-")
    return Kernels(
        attention=InvariantTritonAttention(),
        layers=InvariantTritonLayers(),
        sampling=TritonSampling(),
        numerics=f"{device} triton-{triton.__version__} torch-{torch.__version__}",
    )
