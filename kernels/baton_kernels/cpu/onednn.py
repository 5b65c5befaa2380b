"""Linear layers on a CPU by oneDNN, whose packed weights torch makes and multiplies through two private
operators.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Final

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

MIN_REORDERED_ELEMENTS: Final = 1 << 18
"""Weights below this pay more for the call of the packed product, some 30 us, than they gain."""


def multiplies_bfloat16() -> bool:
    """Say whether this CPU multiplies bfloat16 in hardware; torch converts it in each product where not."""
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # private to torch, which may rename them
    return any(getattr(torch.cpu, name, lambda: False)() for name in names)


class OneDnnProduct:
    """`x @ weight.T + bias` with a packed copy of the weight `[out_features, in_features]`."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        self._bias = bias

    @property
    def packed_bytes(self) -> int:
        return self._packed.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return result


def onednn_product(weight: Tensor, bias: Tensor | None) -> OneDnnProduct | None:
    """Return the layer of a weight; None where a plain one is faster or oneDNN cannot be had."""
    if weight.device.type != "cpu" or weight.numel() < MIN_REORDERED_ELEMENTS or not can_pack(weight.dtype):
        return None
    return OneDnnProduct(weight, bias)


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Say whether this torch has both operators, and they compute in `dtype` on this CPU, in its own
    arithmetic.
    """
    if dtype not in (torch.float32, torch.bfloat16) or (
        dtype == torch.bfloat16 and not multiplies_bfloat16()
    ):
        return False
    weight, x = torch.eye(2, dtype=dtype), torch.tensor([[1.0, 2.0]], dtype=dtype)
    try:
        result = OneDnnProduct(weight, None)(x)
    except (AttributeError, RuntimeError, TypeError) as error:
        logger.warning("linear layers of %s are not packed, which is slower: %s", dtype, error)
        return False
    return torch.equal(result, x)
