"""Parts of a quantized weight: those of its outputs, or of its inputs, that one of several ranks computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from baton_kernels.interface.quantized import QuantizedWeight, stack

_BYTE_BITS: Final = 8


def take_outputs(weight: QuantizedWeight, part: range) -> QuantizedWeight:
    """Return the layer of these outputs alone, as new tensors; each value stays as it is."""
    return stack([weight.outputs(slice(part.start, part.stop))])


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
