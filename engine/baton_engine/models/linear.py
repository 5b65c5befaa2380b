"""Linear layers, each with the product that suits its weight on this machine.

Kernels may bring a product of their own, for quantized layers too. Otherwise, on a CPU, large weights are
packed for oneDNN, and everywhere else, and where something is missing, a layer is `functional.linear`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache, partial
from typing import Final

from torch import Tensor
from torch.nn import functional

from baton_engine.checkpoint.weights import WeightReader
from baton_kernels.cpu.int8 import PackedInt8Product, TorchInt8Product, require_in_features
from baton_kernels.cpu.onednn import onednn_product
from baton_kernels.cpu.packed import PackedProduct
from baton_kernels.interface.kernels import Function, LayerKernels, Product

logger = logging.getLogger(__name__)

_TORCH: Final = LayerKernels()
_GATING: Final = PackedProduct, PackedInt8Product
"""Products that can apply a function to half of their outputs before these are written."""


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
        self._kernels = kernels
        product = (
            _quantized(weight, bias, kernels)
            if is_quantized
            else kernels.product(weight, bias) or onednn_product(weight, bias)
        )
        self._multiply: Product | partial[Tensor] = product or partial(
            functional.linear, weight=weight, bias=bias
        )
        self.packed_bytes = product.packed_bytes if product else 0
        """Size of the packed copy; 0 without one."""

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


def _quantized(weight: Tensor, bias: Tensor | None, kernels: LayerKernels) -> Product:
    require_in_features(weight)
    if product := kernels.int8_product(weight, bias):
        return product
    _warn_of_torch_int8()
    return TorchInt8Product(weight, bias)


@cache
def _warn_of_torch_int8() -> None:
    logger.warning("int8 layers are computed by torch, slower than float32: C++ kernels with AVX2 are needed")


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


def load_projection(
    weights: WeightReader,
    prefix: str,
    names: Sequence[str],
    kernels: LayerKernels,
    *,
    in_size: int,
    out_sizes: Sequence[int],
    has_bias: bool = False,
) -> Linear:
    """Load one linear layer with outputs of `out_sizes` side by side.

    The files hold it under one name, or in parts under one name for each output.

    Raises:
        InvalidModelError: a tensor is missing or has another shape.
    """
    sizes, dtype = out_sizes if len(names) > 1 else [sum(out_sizes)], weights.linear_dtype
    weight = weights.load_stacked(
        [f"{prefix}.{name}.weight" for name in names], [(n, in_size) for n in sizes], dtype
    )
    bias = None
    if has_bias:
        bias = weights.load_stacked([f"{prefix}.{name}.bias" for name in names], [(n,) for n in sizes], dtype)
    return make_linear(weights, weight, bias, kernels)
