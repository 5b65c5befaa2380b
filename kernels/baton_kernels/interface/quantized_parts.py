"""Parts of a quantized weight: those of its outputs, or of its inputs, that one of several ranks computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from baton_kernels.interface.quantized import QuantizedWeight

_BYTE_BITS: Final = 8


def take_outputs(weight: QuantizedWeight, parts: Sequence[range]) -> QuantizedWeight:
    """Return the layer of these outputs, in this order, as new tensors; each value stays as it is."""
    return replace(
        weight,
        codes=_rows(weight.codes, parts),
        scales=_rows(weight.scales, parts),
        zeros=None if weight.zeros is None else _rows(weight.zeros, parts),
        output_scales=None if weight.output_scales is None else _rows(weight.output_scales, parts),
    )


def take_inputs(weight: QuantizedWeight, part: range) -> QuantizedWeight:
    """Return the layer of these inputs alone, as new tensors; each value stays as it is.

    Raises:
        ValueError: the part would cut a group, or what the layer does to its inputs needs all of them; the
            message says what is allowed.
    """
    size, group = weight.in_features, weight.group_size
    if part == range(size):
        return weight
    if weight.input_order is not None:
        raise ValueError("its inputs are in an order of their own; allowed: the order of the model")
    per_byte, units = _BYTE_BITS // weight.element.bits, []
    if (rounding := weight.input_rounding) is not None and rounding.scale is None:
        if rounding.group_size is None:
            raise ValueError("it rounds whole rows of inputs; allowed: scales of groups, or one for all")
        units.append(rounding.group_size)
    for unit in (*units, per_byte, group if group < size else 1):
        if part.start % unit or (part.stop % unit and part.stop != size):
            raise ValueError(f"inputs {part.start} to {part.stop} cut a group; allowed: multiples of {unit}")
    groups = slice(0, 1) if group >= size else slice(part.start // group, -(-part.stop // group))
    return replace(
        weight,
        codes=weight.codes[:, part.start // per_byte : part.stop // per_byte].contiguous(),
        scales=weight.scales[:, groups].contiguous(),
        zeros=None if weight.zeros is None else weight.zeros[:, groups].contiguous(),
        group_size=min(group, len(part)),
    )


def _rows(tensor: Tensor, parts: Sequence[range]) -> Tensor:
    """Concatenate rows; torch cannot with every float of 8 bits."""
    stored = tensor if tensor.itemsize > 1 else tensor.view(torch.uint8)
    rows = torch.cat([stored[part.start : part.stop] for part in parts])
    return rows if tensor.itemsize > 1 else rows.view(tensor.dtype)
