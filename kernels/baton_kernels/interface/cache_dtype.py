"""Dtypes of the KV cache, and the scales of one that has 8 bits.

Such a cache holds codes: K and V divided by their layer's scale, rounded to nearest even. What is beyond the
largest code saturates, and NaN stays NaN. Attention takes a code times the scale.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

import torch
from torch import Tensor


class CacheDtype(IntEnum):
    """Dtypes that the C++ kernels read and write."""

    FLOAT32 = 0
    BFLOAT16 = 1
    FLOAT8_E4M3FN = 2
    FLOAT8_E5M2 = 3


CACHE_DTYPES: Final = {
    torch.float32: CacheDtype.FLOAT32,
    torch.bfloat16: CacheDtype.BFLOAT16,
    torch.float8_e4m3fn: CacheDtype.FLOAT8_E4M3FN,
    torch.float8_e5m2: CacheDtype.FLOAT8_E5M2,
}
FLOAT8: Final = (torch.float8_e4m3fn, torch.float8_e5m2)
"""Dtypes of codes."""


class LayerKVScales(NamedTuple):
    """The values of code 1 in one layer's K and V; caches of other dtypes than `FLOAT8` take none but 1."""

    k: float = 1.0
    v: float = 1.0


UNSCALED: Final = LayerKVScales()


def encode(x: Tensor, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Return `x` in the dtype of a cache, of the same shape; as codes it is divided by `scale` in float32."""
    if dtype not in FLOAT8:
        return x.to(dtype)
    largest = torch.finfo(dtype).max
    return (x.float() / scale).clamp(-largest, largest).to(dtype)


def as_movable(kv_pool: Tensor) -> Tensor:
    """See a pool as numbers that torch's indexing moves: codes as bytes."""
    return kv_pool.view(torch.uint8) if kv_pool.dtype in FLOAT8 else kv_pool
