"""Linear layers, each with the product that suits its weight on this machine.

Quantized layers multiply codes of 8 bits, and kernels may bring a product of their own. Otherwise, on a CPU,
large weights are packed once: for the C++ kernels or, where oneDNN is the faster one, for that, through two
private operators of torch. bfloat16 that torch would only emulate is packed whatever its size. Everywhere
else, and where something is missing, a layer is `functional.linear`.
"""

from __future__ import annotations

import logging
from functools import cache, partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from baton_engine.element_type import has_native_bfloat16
from baton_engine.weights import WeightReader
from baton_kernels.cpu_packed import PackedProduct, packed_product
from baton_kernels.int8 import PackedInt8Product, int8_product
from baton_kernels.interface import Function, LayerKernels, Product

logger = logging.getLogger(__name__)

_TORCH: Final = LayerKernels()
_GATING: Final = PackedProduct, PackedInt8Product
"""Products that can apply a function to half of their outputs before these are written."""

MIN_PACKED_ELEMENTS: Final = 1 << 12
"""Weights below this gain nothing from the C++ kernels."""
MIN_REORDERED_ELEMENTS: Final = 1 << 18
"""Weights below this pay more for the call of oneDNN's packed product, some 30 us, than they gain."""


class Linear:
    """`x @ weight.T + bias` with weight `[out_features, in_features]`.

    Keeps either `weight` or its packed copy: a caller that lets go of `weight` frees the one not kept.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        kernels: LayerKernels = _TORCH,
        *,
        is_quantized: bool = False,
    ) -> None:
        self.packed_bytes = 0
        """Size of the packed copy; 0 without one."""
        self._kernels = kernels
        self._multiply: Product | partial[Tensor]
        product = int8_product(weight, bias) if is_quantized else kernels.product(weight, bias)
        if product is None and (pays_packed(weight, MIN_PACKED_ELEMENTS) or is_emulated(weight)):
            product = packed_product(weight, bias)
        if product is not None:
            self.packed_bytes = product.packed_bytes
            self._multiply = product
        elif pays_packed(weight, MIN_REORDERED_ELEMENTS) and can_pack():
            packed = _reorder(weight)
            self.packed_bytes = packed.nbytes
            self._multiply = partial(_multiply, weight=packed, bias=bias)
        else:
            self._multiply = partial(functional.linear, weight=weight, bias=bias)

    def __call__(self, x: Tensor) -> Tensor:
        """Map `[num_rows, in_features]` to a new `[num_rows, out_features]`."""
        return self._multiply(x)

    def gates(self, function: Function) -> bool:
        """Say whether `gated` of that function takes one pass, without the outputs in memory."""
        return isinstance(self._multiply, _GATING) and self._multiply.gates(function)

    def gated(self, function: Function, x: Tensor) -> Tensor:
        """Return `function(gate) * up` `[num_rows, n]`, where the outputs are gate and up side by side."""
        if isinstance(self._multiply, _GATING) and self._multiply.gates(function):
            return self._multiply.gated(function, x)
        return self._kernels.apply_mul(function, self(x))


def pays_packed(weight: Tensor, min_elements: int) -> bool:
    """Say whether a packed weight of at least `min_elements` is multiplied faster than a plain one."""
    if weight.device.type != "cpu" or weight.numel() < min_elements or is_emulated(weight):
        return False
    return weight.dtype in (torch.float32, torch.bfloat16)


def is_emulated(weight: Tensor) -> bool:
    """Say whether torch converts every product's arguments, as this CPU has no arithmetic for them."""
    return weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and not has_native_bfloat16()


@cache
def can_pack() -> bool:
    """Say whether this torch has both operators and they compute."""
    weight, x = torch.eye(2), torch.tensor([[1.0, 2.0]])
    try:
        result = _multiply(x, weight=_reorder(weight), bias=None)
    except (AttributeError, RuntimeError, TypeError) as error:
        logger.warning("linear layers are not packed, which is slower: %s", error)
        return False
    return torch.equal(result, x)


def _reorder(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
    return packed


def _multiply(x: Tensor, *, weight: Tensor, bias: Tensor | None) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return result


def make_linear(
    weights: WeightReader, weight: Tensor, bias: Tensor | None, kernels: LayerKernels = _TORCH
) -> Linear:
    """Return the layer of a weight that `weights` has handed out; what it keeps counts as loaded instead."""
    layer = Linear(weight, bias, kernels, is_quantized=weights.is_quantized)
    if layer.packed_bytes:
        weights.loaded_bytes += layer.packed_bytes - weight.nbytes
    return layer


def load_head(
    weights: WeightReader, name: str, embedding: Tensor, kernels: LayerKernels = _TORCH, *, is_tied: bool
) -> Linear:
    """Return the output head, the weight `name` or, tied, the embedding table `[vocab_size, hidden_size]`.

    A tied head is packed as well, at the cost of a copy of the table: the table is read by rows of tokens,
    the head as a whole in every step, of which it is a third in small models with large vocabularies.
    """
    if not is_tied:
        weight = weights.load(name, embedding.shape, weights.linear_dtype)
        return make_linear(weights, weight, None, kernels)
    head = Linear(embedding, kernels=kernels, is_quantized=weights.is_quantized)
    weights.loaded_bytes += head.packed_bytes
    return head
