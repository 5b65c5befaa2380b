"""The kernels that a worker computes with, and what it copies blocks with: refused as settings where they
cannot be had.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from baton_core.errors import InvalidConfigError
from baton_engine.batch_invariance import invariant_kernels
from baton_engine.model_config import ModelConfig
from baton_kernels.cpu_copy import CpuCopy
from baton_kernels.cpu_selection import CpuKernelsError, select_copy
from baton_kernels.interface import Kernels
from baton_kernels.selection import select_kernels


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
