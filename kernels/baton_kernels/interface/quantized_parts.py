"""Parts of a quantized weight: those of its outputs, or of its inputs, that one of several ranks computes.

A layer that rounds whole rows of inputs takes the scale of a row from all of it. So a part of its inputs has
further ones behind its own, whose weights are 0: there stand the extremes of the whole row.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from baton_kernels.interface.collectives import Collectives
from baton_kernels.interface.quantized import Element, QuantizedWeight, concatenate, stack

_BYTE_BITS: Final = 8
_ROOM: Final = 64
"""Further inputs of a layer without groups: a multiple of what kernels take at a time."""
_ZERO_CODES: Final = {Element.INT4: 8, Element.NF4: 7}
"""Codes that stand for 0, where that is not 0."""


def take_outputs(weight: QuantizedWeight, part: range) -> QuantizedWeight:
    """Return the layer of these outputs alone, as new tensors; each value stays as it is."""
    return stack([weight.outputs(slice(part.start, part.stop))])


def take_inputs(weight: QuantizedWeight, part: range) -> QuantizedWeight:
    """Return the layer of these inputs alone, as new tensors; each value stays as it is.

    If it `rounds_rows`, it takes what `with_extremes` returns.

    Raises:
        ValueError: the part would cut a group, or inputs have an order of their own; the message says what is
            allowed.
    """
    size, group = weight.in_features, weight.group_size
    if part == range(size):
        return weight
    if weight.input_order is not None:
        raise ValueError("its inputs are in an order of their own; allowed: the order of the model")
    per_byte, units = _BYTE_BITS // weight.element.bits, []
    if (rounding := weight.input_rounding) is not None and rounding.scale is None and rounding.group_size:
        units.append(rounding.group_size)
    for unit in (*units, per_byte, group if group < size else 1):
        if part.start % unit or (part.stop % unit and part.stop != size):
            raise ValueError(f"inputs {part.start} to {part.stop} cut a group; allowed: multiples of {unit}")
    groups = slice(0, 1) if group >= size else slice(part.start // group, -(-part.stop // group))
    taken = replace(
        weight,
        codes=weight.codes[:, part.start // per_byte : part.stop // per_byte].contiguous(),
        scales=weight.scales[:, groups].contiguous(),
        zeros=None if weight.zeros is None else weight.zeros[:, groups].contiguous(),
        group_size=min(group, len(part)),
    )
    return _with_room(taken) if rounds_rows(weight) else taken


def rounds_rows(weight: QuantizedWeight) -> bool:
    """Say whether the scale of a rounded input depends on its whole row."""
    rounding = weight.input_rounding
    return rounding is not None and rounding.scale is None and rounding.group_size is None


def with_extremes(x: Tensor, in_features: int, ranks: Collectives) -> Tensor:
    """Return `x` `[num_rows, its inputs]` with the extremes of whole rows, `[num_rows, in_features]`."""
    own = torch.stack((x.amax(dim=1), x.amin(dim=1)))
    largest, smallest = ranks.all_gather(own).unbind(1)
    size = x.shape[1]
    wide = x.new_zeros(len(x), in_features)
    wide[:, :size], wide[:, size], wide[:, size + 1] = x, largest.amax(dim=0), smallest.amin(dim=0)
    return wide


def _with_room(weight: QuantizedWeight) -> QuantizedWeight:
    """Return the layer with further inputs, of values 0: they continue its last group, or are one more."""
    has_groups, per_byte = weight.group_size < weight.in_features, _BYTE_BITS // weight.element.bits
    room = weight.group_size if has_groups else _ROOM
    if weight.zeros is None:
        zeros = torch.full((weight.out_features, 1), _ZERO_CODES.get(weight.element, 0))
    else:
        zeros = weight.zeros[:, -1:].long()
    column = (zeros if per_byte == 1 else zeros | zeros << 4).to(weight.codes.dtype)
    return replace(
        weight,
        codes=torch.cat((weight.codes, column.expand(-1, room // per_byte)), dim=1),
        scales=_repeat_last(weight.scales) if has_groups else weight.scales,
        zeros=_repeat_last(weight.zeros) if has_groups and weight.zeros is not None else weight.zeros,
        group_size=weight.group_size if has_groups else weight.in_features + room,
    )


def _repeat_last(per_group: Tensor) -> Tensor:
    return concatenate((per_group, per_group[:, -1:]), dim=1)
