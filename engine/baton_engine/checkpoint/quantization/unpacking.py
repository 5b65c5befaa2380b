"""Codes of less than a byte, out of the words in which checkpoints pack them."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from baton_core.errors import InvalidModelError

WORD_BITS: Final = 32
AWQ_ORDER: Final = (0, 4, 1, 5, 2, 6, 3, 7)
"""Place in a word of each of 8 neighbouring codes, as AutoAWQ and Quark pack them."""


def unpack_words(words: Tensor, bits: int) -> Tensor:
    """Return the codes `[num_rows, n * 32 / bits]` uint8 of words `[num_rows, n]` int32.

    The first code has the lowest bits. Where `bits` does not divide 32, codes go on in the next word.
    """
    if WORD_BITS % bits == 0:
        shifts = torch.arange(0, WORD_BITS, bits, dtype=torch.int32)
        return ((words[:, :, None] >> shifts) & ((1 << bits) - 1)).to(torch.uint8).flatten(1)
    places = torch.arange(WORD_BITS, dtype=torch.int32)
    single = ((words[:, :, None] >> places) & 1).to(torch.uint8).view(len(words), -1, bits)
    return (single << torch.arange(bits, dtype=torch.uint8)).sum(dim=-1, dtype=torch.uint8)


def unpack_awq(words: Tensor) -> Tensor:
    """Return the codes `[num_rows, n * 8]` of 4 bits of words `[num_rows, n]` int32, in AWQ's order."""
    codes = unpack_words(words, 4).view(len(words), -1, 8)
    return codes[:, :, list(AWQ_ORDER)].flatten(1)


def pack_nibbles(codes: Tensor) -> Tensor:
    """Return bytes `[num_rows, n / 2]` of codes `[num_rows, n]` below 16, the first in the lower bits."""
    return codes[:, 0::2] | codes[:, 1::2] << 4


def unpack_six_bits(packed: Tensor) -> Tensor:
    """Return the codes `[num_rows, n / 3 * 4]` of bytes `[num_rows, n]`: four in three bytes, low first."""
    first, second, third = packed.view(len(packed), -1, 3).to(torch.int32).unbind(dim=-1)
    words = first | second << 8 | third << 16
    return ((words[:, :, None] >> torch.arange(0, 24, 6)) & 63).to(torch.uint8).flatten(1)


def require_divisible(name: str, size: int, divisor: int) -> None:
    """Check that a size of a layer is a multiple of what its format packs or scales together.

    Raises:
        InvalidModelError: it is not.
    """
    if size % divisor:
        raise InvalidModelError(f"{name} is {size}; allowed: a multiple of {divisor}")


def order_of_groups(name: str, groups: Tensor | None, in_features: int, group_size: int) -> Tensor | None:
    """Return the inputs sorted by their groups, which a tensor of that name holds; None where they are so.

    Raises:
        InvalidModelError: a group is out of range, or has not as many inputs as the others.
    """
    if groups is None:
        return None
    groups = groups.long()
    num_groups = in_features // group_size
    if groups.amin() < 0 or groups.amax() >= num_groups:
        found = int(groups.amin() if groups.amin() < 0 else groups.amax())
        raise InvalidModelError(f"{name} holds {found}; allowed: 0 to {num_groups - 1}")
    if (groups.bincount(minlength=num_groups) != group_size).any():
        raise InvalidModelError(f"{name} has groups of other sizes; allowed: {group_size} inputs each")
    order = groups.argsort(stable=True)
    return None if torch.equal(order, torch.arange(in_features)) else order
