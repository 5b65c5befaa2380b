"""One linear layer of several groups of rows, each with a weight of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from baton_engine.models.linear import Linear

_GROUPED_ALIGNMENT_BYTES: Final = 16
_MIN_CUDA_CAPABILITY: Final = (8, 0)
_DEVICE_ONLY_CUDA_MAJORS: Final = (9, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The groups of rows that are sorted by group."""

    ends: Tensor
    """`[num_groups] int32`, the row after the last of each group."""
    of_row: Tensor
    """`[num_rows] int64`, the group of each row."""


class GroupedLinear:
    """`x[i] @ weight[e].T + bias[e]` for every row i, e being its group.

    `weight` is `[num_groups, out_features, in_features]`, `bias` `[num_groups, out_features]`.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias
        self.is_device_only = is_device_only(weight)
        """As `is_device_only` says of the weight."""

    def __call__(self, rows: Tensor, groups: Groups) -> Tensor:
        """Map `[num_rows, in_features]` to a new `[num_rows, out_features]`."""
        out = grouped_linear(rows, self._weight, groups.ends)
        return out if self._bias is None else out.add_(self._bias[groups.of_row])


class GroupedProducts:
    """The same with a product of its own for each group, such as one of codes."""

    is_device_only = False

    def __init__(self, layers: Sequence[Linear], out_features: int) -> None:
        self._layers = layers
        self._out_features = out_features

    def __call__(self, rows: Tensor, groups: Groups) -> Tensor:
        """Map `[num_rows, in_features]` to a new `[num_rows, out_features]`."""
        out = rows.new_empty(len(rows), self._out_features)
        start = 0
        for layer, end in zip(self._layers, groups.ends.tolist(), strict=True):
            if end > start:
                out[start:end] = layer(rows[start:end])
            start = end
        return out


def grouped_linear(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Return `rows[i] @ weight[e].T` for every row i, e being the group that holds the row.

    `rows` is `[num_rows, in_features]`, sorted by group; `weight` is `[num_groups, out_features,
    in_features]`; `ends` is `[num_groups] int32`, the row after the last of each group. Returns a new
    `[num_rows, out_features]`.
    """
    if _has_grouped_product(weight):
        return functional.grouped_mm(rows, weight.transpose(1, 2), offs=ends)
    out = rows.new_empty(len(rows), weight.shape[1])
    start = 0
    for group, end in enumerate(ends.tolist()):
        if end > start:
            torch.mm(rows[start:end], weight[group].T, out=out[start:end])
        start = end
    return out


def is_device_only(weight: Tensor) -> bool:
    """Say whether `grouped_linear` takes `ends` from the device alone.

    Torch does so for bfloat16 on CUDA devices 9.x and 10.x; elsewhere it reads them on the host, like the
    loop.

    Source: `_grouped_mm_cuda` and `_grouped_mm_fallback` of PyTorch's ATen.
    """
    return (
        weight.device.type == "cuda"
        and weight.dtype == torch.bfloat16
        and _has_grouped_product(weight)
        and torch.cuda.get_device_capability(weight.device)[0] in _DEVICE_ONLY_CUDA_MAJORS
    )


def _has_grouped_product(weight: Tensor) -> bool:
    """Say whether torch has the product for this device and for rows of this length."""
    if weight.shape[-1] * weight.itemsize % _GROUPED_ALIGNMENT_BYTES:
        return False
    is_cuda = weight.device.type == "cuda"
    return not is_cuda or torch.cuda.get_device_capability(weight.device) >= _MIN_CUDA_CAPABILITY
