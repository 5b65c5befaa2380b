"""Which models and machines compute batch-invariantly, and with which kernels."""

from __future__ import annotations

import torch

from baton_core.errors import InvalidConfigError
from baton_engine.model_config import ModelConfig
from baton_engine.models.registry import why_not_dense
from baton_kernels.interface import Kernels
from baton_kernels.invariant_selection import NotInvariantError, select_invariant_kernels


def invariant_kernels(
    config: ModelConfig, device: torch.device, dtype: torch.dtype, cpu_kernels: str
) -> Kernels:
    """Return kernels under which a token's logits do not depend on what shares its steps.

    Raises:
        InvalidConfigError: the model or the machine has none.
        CpuKernelsError: `cpu_kernels` cannot be had.
    """
    if where := why_not_dense(config):
        raise _refused(where)
    try:
        head_dim = config.kv_spec(1, "float32").head_dim
        return select_invariant_kernels(device, dtype, head_dim, cpu_kernels)
    except NotInvariantError as error:
        raise _refused(str(error)) from error


def _refused(where: str) -> InvalidConfigError:
    return InvalidConfigError(f"batch_invariant is True; allowed with {where}: False")
