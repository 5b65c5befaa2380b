"""Linear layers, each with the product that suits its weight on this machine.

Kernels may bring a product of their own, for quantized layers too. Otherwise, on a CPU, large weights are
packed for oneDNN, and everywhere else, and where something is missing, a layer is `functional.linear`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache, partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from baton_engine.checkpoint.quantization.methods import OnlineQuantization
from baton_engine.checkpoint.quantization.online import quantize
from baton_engine.checkpoint.weights import WeightReader
from baton_kernels.cpu.int8 import TorchInt8Product, is_int8
from baton_kernels.cpu.onednn import onednn_product
from baton_kernels.interface.kernels import Function, GatedProduct, LayerKernels, Product
from baton_kernels.interface.quantized import Element, QuantizedWeight, can_stack, stack
from baton_kernels.reference.quantized_product import TorchQuantizedProduct

logger = logging.getLogger(__name__)

_TORCH: Final = LayerKernels()


class Linear:
    """`x @ weight.T + bias` with weight `[out_features, in_features]`, of numbers or of codes.

    `dtype` is that of its rows, where the weight is of codes.

    Keeps either `weight` or its packed copy: a caller that lets go of `weight` frees the one not kept.
    """

    def __init__(
        self,
        weight: Tensor | QuantizedWeight,
        bias: Tensor | None = None,
        kernels: LayerKernels = _TORCH,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._kernels = kernels
        product: Product | None
        if isinstance(weight, QuantizedWeight):
            product = kernels.quantized_product(weight, bias, dtype) or _torch_product(weight, bias)
        else:
            product = kernels.product(weight, bias) or onednn_product(weight, bias)
        plain = partial(functional.linear, weight=weight, bias=bias)  # type: ignore[arg-type]  # has a product
        self._multiply: Product | partial[Tensor] = product or plain
        self._gating = product if isinstance(product, GatedProduct) else None
        self.packed_bytes = product.packed_bytes if product else 0
        """Size of the packed copy; 0 without one."""

    def __call__(self, x: Tensor) -> Tensor:
        """Map `[num_rows, in_features]` to a new `[num_rows, out_features]`."""
        return self._multiply(x)

    def gates(self, function: Function) -> bool:
        """Say whether `gated` of that function takes one pass, without the outputs in memory."""
        return self._gating is not None and self._gating.gates(function)

    def gated(self, function: Function, x: Tensor) -> Tensor:
        """Return `function(gate) * up` `[num_rows, n]`, where the outputs are gate and up side by side."""
        if self._gating is not None and self._gating.gates(function):
            return self._gating.gated(function, x)
        return self._kernels.apply_mul(function, self(x))


class SideBySide:
    """Linear layers of the same inputs as one, with their outputs side by side: one product for each."""

    def __init__(self, layers: Sequence[Linear], kernels: LayerKernels) -> None:
        self._layers = layers
        self._kernels = kernels

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([layer(x) for layer in self._layers], dim=-1)

    def gates(self, function: Function) -> bool:
        return False

    def gated(self, function: Function, x: Tensor) -> Tensor:
        return self._kernels.apply_mul(function, self(x))


def _torch_product(weight: QuantizedWeight, bias: Tensor | None) -> Product:
    _warn_of_torch(weight.element)
    return TorchInt8Product(weight, bias) if is_int8(weight) else TorchQuantizedProduct(weight, bias)


@cache
def _warn_of_torch(element: Element) -> None:
    logger.warning("quantized layers (%s) are computed by torch, slower than unquantized ones", element.value)


def make_linear(
    weights: WeightReader,
    layer: str,
    weight: Tensor | QuantizedWeight,
    bias: Tensor | None,
    kernels: LayerKernels = _TORCH,
) -> Linear:
    """Return the layer of a weight that `weights` has handed out; what it keeps counts as loaded instead.

    `layer` is the name by which it may be quantized while it is loaded.
    """
    num_bytes = weight.nbytes if isinstance(weight, Tensor) else weight.num_bytes
    if isinstance(weight, Tensor):
        weight = _quantized_online(weights, layer, weight)
    if isinstance(weight, Tensor) and bias is not None:
        bias = bias.to(weight.dtype)
    made = Linear(weight, bias, kernels, dtype=weights.dtype)
    if made.packed_bytes:
        weights.loaded_bytes += made.packed_bytes - num_bytes
    return made


def _quantized_online(weights: WeightReader, layer: str, weight: Tensor) -> Tensor | QuantizedWeight:
    """Return a weight as codes, where the plan says so, else in the dtype of the model."""
    if weights.online is None:
        return weight
    kind = _kind_of(weights, layer)
    return weight.to(weights.dtype) if kind is None else quantize(weight.float(), kind)


def is_to_quantize(weights: WeightReader, layer: str) -> bool:
    """Say whether the layer of that name is made of codes, stored so or made so while it is loaded."""
    return weights.is_quantized(layer) or _kind_of(weights, layer) is not None


def _kind_of(weights: WeightReader, layer: str) -> OnlineQuantization | None:
    return None if weights.online is None else weights.online.kind_of(layer)


def load_head(
    weights: WeightReader, layer: str, embedding: Tensor, kernels: LayerKernels = _TORCH, *, is_tied: bool
) -> Linear:
    """Return the output head: the layer of that name or, tied, the embedding `[vocab_size, hidden_size]`.

    A tied head is packed as well, at the cost of a copy of the table: the table is read by rows of tokens,
    the head as a whole in every step, of which it is a third in small models with large vocabularies.
    """
    if not is_tied and weights.is_quantized(layer):
        stored = weights.load_quantized(layer, *embedding.shape)
        return make_linear(weights, layer, stored, None, kernels)
    if not is_tied:
        weight = weights.load(f"{layer}.weight", embedding.shape, weights.linear_dtype)
        return make_linear(weights, layer, weight, None, kernels)
    head = Linear(_quantized_online(weights, layer, embedding), kernels=kernels, dtype=weights.dtype)
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
) -> Linear | SideBySide:
    """Load one linear layer with outputs of `out_sizes` side by side.

    The files hold it under one name, or in parts under one name for each output. Parts that are not
    quantized alike have a product each.

    Raises:
        InvalidModelError: a tensor is missing or has another shape.
    """
    layers, dtype = [f"{prefix}.{name}" for name in names], weights.linear_dtype
    sizes = list(out_sizes) if len(names) > 1 else [sum(out_sizes)]
    bias = None
    if has_bias:
        bias = weights.load_stacked([f"{name}.bias" for name in layers], [(n,) for n in sizes], dtype)
    kinds = {_kind_of(weights, layer) for layer in layers}
    if len(kinds) == 1 and not any(map(weights.is_quantized, layers)):
        weight = weights.load_stacked(
            [f"{name}.weight" for name in layers], [(n, in_size) for n in sizes], dtype
        )
        return make_linear(weights, layers[0], weight, bias, kernels)
    parts = [_load_part(weights, layer, size, in_size) for layer, size in zip(layers, sizes, strict=True)]
    quantized = [part for part in parts if isinstance(part, QuantizedWeight)]
    if len(quantized) == len(parts) and can_stack(quantized):
        return make_linear(weights, layers[0], stack(quantized), bias, kernels)
    biases = [None] * len(parts) if bias is None else torch.split(bias, sizes)
    named = zip(layers, parts, biases, strict=True)
    return SideBySide([make_linear(weights, *one, kernels) for one in named], kernels)


def _load_part(weights: WeightReader, layer: str, out_size: int, in_size: int) -> Tensor | QuantizedWeight:
    if weights.is_quantized(layer):
        return weights.load_quantized(layer, out_size, in_size)
    return weights.load(f"{layer}.weight", (out_size, in_size), weights.linear_dtype)
