"""The kernels that a worker computes with, and what it copies blocks with: refused as settings where they
cannot be had.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from baton_core.errors import InvalidConfigError
from baton_engine.checkpoint.model_config import ModelConfig
from baton_engine.models.registry import why_not_native
from baton_kernels.cpu.copy import CpuCopy
from baton_kernels.cpu.selection import select_copy
from baton_kernels.cpu.variants import CpuKernelsError
from baton_kernels.interface.kernels import Kernels
from baton_kernels.selection import NotInvariantError, select_invariant_kernels, select_kernels


def choose_kernels(
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    *,
    cpu_kernels: str,
    batch_invariant: bool = False,
) -> Kernels:
    """Return the kernels for a model and a KV pool of `dtype`.

    Raises:
        InvalidConfigError: this machine cannot have those that are asked for.
    """
    with _refusing():
        if batch_invariant:
            return invariant_kernels(config, device, dtype, cpu_kernels)
        return select_kernels(device, dtype, cpu_kernels)


def choose_copy(device: torch.device, cpu_kernels: str) -> CpuCopy | None:
    """Return what copies blocks in host memory; None where there are no C++ kernels.

    Raises:
        InvalidConfigError: this machine cannot have those that are asked for.
    """
    with _refusing():
        return select_copy(cpu_kernels) if device.type == "cpu" else None


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except CpuKernelsError as error:
        raise InvalidConfigError(str(error)) from error


def invariant_kernels(
    config: ModelConfig, device: torch.device, dtype: torch.dtype, cpu_kernels: str
) -> Kernels:
    """Return kernels under which a token's logits do not depend on what shares its steps.

    Raises:
        InvalidConfigError: the model or the machine has none.
        CpuKernelsError: `cpu_kernels` cannot be had.
    """
    if where := why_not_native(config):
        raise _refused(where)
    try:
        head_dim = config.kv_spec(1, "float32").head_dim
        return select_invariant_kernels(device, dtype, head_dim, cpu_kernels)
    except NotInvariantError as error:
        raise _refused(str(error)) from error


def _refused(where: str) -> InvalidConfigError:
    return InvalidConfigError(f"batch_invariant is True; allowed with {where}: False")
