"""Linear layers, with weights repacked once for the CPU's matrix product where that is faster.

Packing uses oneDNN through two private operators of torch. Without them, or where they refuse or do not pay,
a layer is `functional.linear`.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from baton_engine.element_type import has_native_bfloat16
from baton_engine.weights import WeightReader

logger = logging.getLogger(__name__)

MIN_PACKED_ELEMENTS: Final = 1 << 18
"""Weights below this pay more for the call of the packed product, some 30 us, than they gain."""


class Linear:
    """`x @ weight.T + bias` with weight `[out_features, in_features]`.

    Keeps either `weight` or its packed copy: a caller that lets go of `weight` frees the one not kept.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._packed = _reorder(weight) if pays_packed(weight) else None
        self._weight = weight if self._packed is None else None
        self._bias = bias

    @property
    def packed_bytes(self) -> int:
        """Size of the packed copy; 0 without one."""
        return 0 if self._packed is None else self._packed.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """Map `[num_rows, in_features]` to a new `[num_rows, out_features]`."""
        if self._packed is not None:
            return _multiply(x, self._packed, self._bias)
        assert self._weight is not None, "a layer keeps its weight in one of two forms"
        return functional.linear(x, self._weight, self._bias)


def pays_packed(weight: Tensor) -> bool:
    """Say whether the packed product is the faster one for batches of several rows.

    It is not where bfloat16 is emulated.
    """
    if weight.device.type != "cpu" or weight.numel() < MIN_PACKED_ELEMENTS or not can_pack():
        return False
    return weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and has_native_bfloat16())


@cache
def can_pack() -> bool:
    """Say whether this torch has both operators and they compute."""
    weight, x = torch.eye(2), torch.tensor([[1.0, 2.0]])
    try:
        result = _multiply(x, _reorder(weight), None)
    except (AttributeError, RuntimeError, TypeError) as error:
        logger.warning("linear layers are not packed, which is slower: %s", error)
        return False
    return torch.equal(result, x)


def _reorder(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
    return packed


def _multiply(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return result


def load_head(weights: WeightReader, name: str, embedding: Tensor, *, is_tied: bool) -> Linear:
    """Return the output head, the weight `name` or, tied, the embedding table `[vocab_size, hidden_size]`.

    A tied head is packed as well, at the cost of a copy of the table: the table is read by rows of tokens,
    the head as a whole in every step, of which it is a third in small models with large vocabularies.
    """
    head = Linear(embedding if is_tied else weights.load(name, embedding.shape))
    if is_tied:
        weights.loaded_bytes += head.packed_bytes
    return head
