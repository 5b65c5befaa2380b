"""Linear layers, each with the product that suits its weight on this machine.

Kernels may bring a product of their own, for quantized layers too. Otherwise, on a CPU, large weights are
packed for oneDNN, and everywhere else, and where something is missing, a layer is `functional.linear`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache, partial
from itertools import accumulate
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from baton_core.errors import InvalidModelError
from baton_engine.checkpoint.adapter_places import AdapterPlace, PlacePart
from baton_engine.checkpoint.quantization.methods import OnlineQuantization
from baton_engine.checkpoint.quantization.online import quantize
from baton_engine.checkpoint.weights import Part, WeightReader
from baton_engine.models.shares import WHOLE, Share
from baton_kernels.cpu.int8 import TorchInt8Product, is_int8
from baton_kernels.cpu.onednn import onednn_product
from baton_kernels.interface.collectives import Collectives
from baton_kernels.interface.kernels import Function, GatedProduct, LayerKernels, Product
from baton_kernels.interface.quantized import Element, QuantizedWeight, can_stack, stack
from baton_kernels.interface.quantized_parts import rounds_rows, take_inputs, take_outputs, with_extremes
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
        ranks: Collectives | None = None,
    ) -> None:
        """Make a layer; with `ranks` it has a part of the inputs and needs the extremes of whole rows.

        Raises:
            InvalidModelError: batch-invariant kernels have no product of such a quantized weight.
        """
        self._kernels, self._ranks = kernels, ranks
        self._in_features = weight.in_features if isinstance(weight, QuantizedWeight) else weight.shape[1]
        product: Product | None
        if isinstance(weight, QuantizedWeight):
            product = kernels.quantized_product(weight, bias, dtype)
            product = product or _torch_product(weight, bias, is_invariant=kernels.is_invariant)
        else:
            product = kernels.product(weight, bias) or onednn_product(weight, bias)
        plain = partial(functional.linear, weight=weight, bias=bias)  # type: ignore[arg-type]  # has a product
        self._multiply: Product | partial[Tensor] = product or plain
        self._gating = product if isinstance(product, GatedProduct) else None
        self.packed_bytes = product.packed_bytes if product else 0
        """Size of the packed copy; 0 without one."""

    def __call__(self, x: Tensor) -> Tensor:
        """Map `[num_rows, in_features]` to a new `[num_rows, out_features]`."""
        if self._ranks is not None:
            x = with_extremes(x, self._in_features, self._ranks)
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

    def __init__(self, layers: Sequence[Linear | SideBySide], kernels: LayerKernels) -> None:
        self._layers = layers
        self._kernels = kernels

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([layer(x) for layer in self._layers], dim=-1)

    def gates(self, function: Function) -> bool:
        return False

    def gated(self, function: Function, x: Tensor) -> Tensor:
        return self._kernels.apply_mul(function, self(x))


class AdaptedLinear:
    """A linear layer whose outputs adapters change where rows of a step have some."""

    def __init__(self, layer: Linear | SideBySide, place: AdapterPlace, kernels: LayerKernels) -> None:
        self._layer, self._place, self._kernels = layer, place, kernels

    def __call__(self, x: Tensor) -> Tensor:
        """As `Linear`."""
        return self._place.add(x, self._layer(x))

    def gates(self, function: Function) -> bool:
        """As `Linear`; a row's delta comes before the function, so it is never so with adapters."""
        return not self._place.is_active and self._layer.gates(function)

    def gated(self, function: Function, x: Tensor) -> Tensor:
        """As `Linear`."""
        if self._place.is_active:
            return self._kernels.apply_mul(function, self(x))
        return self._layer.gated(function, x)


AnyLinear = Linear | SideBySide | AdaptedLinear


def adapted(
    weights: WeightReader,
    layer: Linear | SideBySide,
    layers: Sequence[str],
    kernels: LayerKernels,
    *,
    in_size: int,
    out_sizes: Sequence[int],
    share: Share = WHOLE,
) -> AnyLinear:
    """Return a layer as adapters change it, where the engine takes some; `layers` are its names."""
    if weights.adapters is None:
        return layer
    place = weights.adapters.linear(find_pieces(layers, out_sizes, share), in_size, share.inputs)
    return AdaptedLinear(layer, place, kernels)


def _torch_product(weight: QuantizedWeight, bias: Tensor | None, *, is_invariant: bool) -> Product:
    if is_invariant and not is_int8(weight):
        raise InvalidModelError(
            f"batch_invariant is True with quantized layers in groups of {weight.group_size} inputs; "
            "allowed: groups of a multiple of 16"
        )
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
    *,
    out_sizes: Sequence[int] = (),
    share: Share = WHOLE,
) -> Linear:
    """Return the layer of a weight that `weights` has handed out; what it keeps counts as loaded instead.

    `layer` is the name by which it may be quantized while it is loaded. The weight is that of a share, or
    where `share_to_read` is another that of the whole layer, with outputs of `out_sizes` side by side.

    Raises:
        InvalidModelError: a share cuts what belongs together.
    """
    num_bytes = weight.nbytes if isinstance(weight, Tensor) else weight.num_bytes
    if isinstance(weight, Tensor):
        weight = _quantized_online(weights, layer, weight)
        if isinstance(weight, QuantizedWeight) and not share.is_whole:
            weight = _take(layer, weight, out_sizes, share)
    if isinstance(weight, Tensor) and bias is not None:
        bias = bias.to(weight.dtype)
    is_apart = isinstance(weight, QuantizedWeight) and rounds_rows(weight) and share.inputs is not None
    made = Linear(weight, bias, kernels, dtype=weights.dtype, ranks=share.ranks if is_apart else None)
    if made.packed_bytes:
        weights.loaded_bytes += made.packed_bytes - num_bytes
    return made


def _quantized_online(weights: WeightReader, layer: str, weight: Tensor) -> Tensor | QuantizedWeight:
    """Return a weight as codes, where the plan says so, else in the dtype of the model."""
    if weights.online is None:
        return weight
    kind = _kind_of(weights, layer)
    return weight.to(weights.dtype) if kind is None else quantize(weight.float(), kind)


def share_to_read(weights: WeightReader, layer: str, share: Share) -> Share:
    """Return the share of a layer that is to be read: all of it, if it is quantized while it is loaded.

    So its codes and scales are those of one process.
    """
    return share if _kind_of(weights, layer) is None else WHOLE


def _take(layer: str, weight: QuantizedWeight, out_sizes: Sequence[int], share: Share) -> QuantizedWeight:
    if share.outputs is not None:
        placed = _place(out_sizes, share.outputs)
        return stack([weight.outputs(slice(rows.start, rows.stop)) for rows in placed])
    assert share.inputs is not None, "it is not whole"
    try:
        return take_inputs(weight, share.inputs)
    except ValueError as error:
        raise undividable(layer, error) from None


def is_to_quantize(weights: WeightReader, layer: str) -> bool:
    """Say whether the layer of that name is made of codes, stored so or made so while it is loaded."""
    return weights.is_quantized(layer) or _kind_of(weights, layer) is not None


def _kind_of(weights: WeightReader, layer: str) -> OnlineQuantization | None:
    return None if weights.online is None else weights.online.kind_of(layer)


def load_head(
    weights: WeightReader,
    layer: str,
    shape: tuple[int, int],
    tied: Tensor | None,
    kernels: LayerKernels = _TORCH,
    share: Share = WHOLE,
) -> AnyLinear:
    """Return the output head `[vocab_size, size]`: the layer of that name, or the rows of the embedding it is
    tied to; of the layer only a share. `tied` is as much of the table as `share_to_read` says.

    A tied head is packed as well, at the cost of a copy of the table: the table is read by rows of tokens,
    the head as a whole in every step, of which it is a third in small models with large vocabularies.
    """
    if tied is not None:
        weight = _quantized_online(weights, layer, tied)
        if isinstance(weight, QuantizedWeight) and not share.is_whole:
            weight = _take(layer, weight, [shape[0]], share)
        head = Linear(weight, kernels=kernels, dtype=weights.dtype)
        weights.loaded_bytes += head.packed_bytes
        if not head.packed_bytes:  # the head reads the table itself
            weights.table_bytes -= tied.nbytes
    else:
        read = share_to_read(weights, layer, share)
        (piece,) = find_pieces([layer], [shape[0]], read)
        weight = load_piece(weights, piece, shape[1], read)
        head = make_linear(weights, layer, weight, None, kernels, out_sizes=[shape[0]], share=share)
    return adapted(weights, head, [layer], kernels, in_size=shape[1], out_sizes=[shape[0]], share=share)


def load_projection(
    weights: WeightReader,
    layers: Sequence[str],
    kernels: LayerKernels,
    *,
    in_size: int,
    out_sizes: Sequence[int],
    has_bias: bool = False,
    share: Share = WHOLE,
) -> AnyLinear:
    """Load one linear layer with outputs of `out_sizes` side by side, or a rank's share of it.

    The files hold it under one name, or in parts under one name for each output. Parts that are not
    quantized alike have a product each.

    Raises:
        InvalidModelError: a tensor is missing or has another shape, or a share cuts what belongs together.
    """
    layer = load_plain_projection(
        weights, layers, kernels, in_size=in_size, out_sizes=out_sizes, has_bias=has_bias, share=share
    )
    return adapted(weights, layer, layers, kernels, in_size=in_size, out_sizes=out_sizes, share=share)


def load_plain_projection(
    weights: WeightReader,
    layers: Sequence[str],
    kernels: LayerKernels,
    *,
    in_size: int,
    out_sizes: Sequence[int],
    has_bias: bool = False,
    share: Share = WHOLE,
) -> Linear | SideBySide:
    """Load the layer of that name, or those side by side, as it is without adapters.

    Raises:
        InvalidModelError: as `load_projection`.
    """
    if len({_kind_of(weights, layer) for layer in layers}) > 1:
        each = zip(layers, out_sizes, share.by_output(len(layers)), strict=True)
        load = partial(load_plain_projection, weights, kernels=kernels, in_size=in_size, has_bias=has_bias)
        return SideBySide([load([name], out_sizes=[size], share=part) for name, size, part in each], kernels)
    pieces = find_pieces(layers, out_sizes, share)
    bias = load_bias(weights, pieces) if has_bias else None
    if not any(map(weights.is_quantized, layers)):
        read = share_to_read(weights, layers[0], share)
        wanted = find_pieces(layers, out_sizes, read)
        weight = weights.load_stacked(
            [f"{piece.layer}.weight" for piece in wanted],
            [(piece.out_size, in_size) for piece in wanted],
            weights.linear_dtype,
            [part_of(piece, read) for piece in wanted],
        )
        return make_linear(weights, layers[0], weight, bias, kernels, out_sizes=out_sizes, share=share)
    loaded = [load_piece(weights, piece, in_size, share) for piece in pieces]
    quantized = [one for one in loaded if isinstance(one, QuantizedWeight)]
    if len(quantized) == len(loaded) and can_stack(quantized):
        return make_linear(weights, layers[0], stack(quantized), bias, kernels, share=share)
    biases = [None] * len(pieces) if bias is None else torch.split(bias, [piece.num_rows for piece in pieces])
    named = zip([piece.layer for piece in pieces], loaded, biases, strict=True)
    return SideBySide([make_linear(weights, *one, kernels) for one in named], kernels)


def load_bias(weights: WeightReader, pieces: Sequence[PlacePart]) -> Tensor:
    """Return the biases `[num_rows]` of pieces, one after another."""
    return weights.load_stacked(
        [f"{piece.layer}.bias" for piece in pieces],
        [(piece.out_size,) for piece in pieces],
        weights.linear_dtype,
        [part_of(piece, WHOLE) for piece in pieces],
    )


def part_of(piece: PlacePart, share: Share) -> Part | None:
    """Return the rows of a piece in the files, or of one with all rows the columns of a share."""
    return share.columns if piece.rows is None else Part(0, piece.rows)


def find_pieces(layers: Sequence[str], out_sizes: Sequence[int], share: Share) -> list[PlacePart]:
    """Return where the rows of a share lie, in the order of its outputs."""
    if share.outputs is None:
        sizes = out_sizes if len(layers) > 1 else [sum(out_sizes)]
        return [PlacePart(layer=layer, out_size=size) for layer, size in zip(layers, sizes, strict=True)]
    if len(layers) > 1:
        return [
            PlacePart(layer=layer, out_size=size, rows=rows)
            for layer, size, rows in zip(layers, out_sizes, share.outputs, strict=True)
        ]
    placed = _place(out_sizes, share.outputs)
    return [PlacePart(layer=layers[0], out_size=sum(out_sizes), rows=rows) for rows in placed]


def _place(out_sizes: Sequence[int], outputs: Sequence[range]) -> list[range]:
    """Return where rows of each output lie in a layer that has the outputs side by side."""
    starts = accumulate(out_sizes, initial=0)
    return [
        range(start + rows.start, start + rows.stop) for start, rows in zip(starts, outputs, strict=False)
    ]


def load_piece(
    weights: WeightReader, piece: PlacePart, in_size: int, share: Share
) -> Tensor | QuantizedWeight:
    """Return the rows of a piece, and of them the columns of a share.

    Raises:
        InvalidModelError: as `load_projection`.
    """
    if not weights.is_quantized(piece.layer):
        shape = (piece.out_size, in_size)
        return weights.load(f"{piece.layer}.weight", shape, weights.linear_dtype, part_of(piece, share))
    stored = weights.load_quantized(piece.layer, piece.out_size, in_size)
    try:
        if piece.rows is not None:
            return take_outputs(stored, piece.rows)
        return stored if share.inputs is None else take_inputs(stored, share.inputs)
    except ValueError as error:
        raise undividable(piece.layer, error) from None


def undividable(layer: str, error: ValueError) -> InvalidModelError:
    """Return the refusal to divide a layer that is stored quantized."""
    whole = ", or whole experts (enable_expert_parallel)" if ".experts" in layer else ""
    return InvalidModelError(f"{layer} cannot be divided over ranks: {error}{whole}")
