"""Several small arrays to a device in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGN: Final = 16
"""Bytes: what a kernel loads at once begins at a multiple of it."""
_TORCH_TYPES: Final = {"int32": torch.int32, "int64": torch.int64, "float64": torch.float64}


def upload(arrays: Sequence[NDArray[Any]], device: torch.device | str) -> list[Tensor]:
    """Return a tensor for each array; on the CPU they share its memory.

    For another device they are packed into pinned memory, which its allocator keeps until the copy is done,
    and the tensors are views of one.
    """
    if torch.device(device).type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    starts = [0]
    for array in arrays:
        starts.append(-(-(starts[-1] + array.nbytes) // _ALIGN) * _ALIGN)
    host = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=True)
    packed = host.numpy()
    for array, start in zip(arrays, starts, strict=False):
        packed[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    on_device = host.to(device, non_blocking=True)
    return [
        on_device[start : start + array.nbytes].view(_TORCH_TYPES[array.dtype.name]).view(array.shape)
        for array, start in zip(arrays, starts, strict=False)
    ]
