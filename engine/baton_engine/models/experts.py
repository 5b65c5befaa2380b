"""The experts of one layer, as grouped products over all of them or one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Final, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from baton_engine.checkpoint.adapter_places import AdapterPlaces
from baton_engine.checkpoint.weights import Part, WeightReader
from baton_engine.models.linear import (
    AnyLinear,
    adapted,
    is_to_quantize,
    load_plain_projection,
    load_projection,
    make_linear,
    share_to_read,
)
from baton_engine.models.mixture_config import MixtureConfig, MixtureNames
from baton_engine.models.shares import ExpertShare
from baton_kernels.interface.kernels import Function, LayerKernels

_GROUPED_ALIGNMENT_BYTES: Final = 16
_MIN_CUDA_CAPABILITY: Final = (8, 0)
_DEVICE_ONLY_CUDA_MAJORS: Final = (9, 10)


class Experts(Protocol):
    """Some experts of a layer."""

    @property
    def is_capturable(self) -> bool:
        """As `Model.is_capturable`."""
        ...

    def forward(self, rows: Tensor, ends: Tensor, slots: Tensor | None = None) -> Tensor:
        """Map `[num_rows, hidden_size]`, sorted by expert, to a new tensor of the same shape and dtype.

        `ends` is `[num_experts] int32`, the row after the last of each expert; `slots` `[num_rows] int32`
        are the slots of the rows' adapters, None where no row has one.
        """
        ...


class GroupedExperts:
    """Experts in two tensors, so that each of their linear layers is one grouped product.

    `gate_up` is `[num_experts, 2 * intermediate_size, hidden_size]`, `down`
    `[num_experts, hidden_size, intermediate_size]`.
    """

    def __init__(self, gate_up: Tensor, down: Tensor, kernels: LayerKernels) -> None:
        self._gate_up, self._down, self._kernels = gate_up, down, kernels
        self.is_capturable = all(map(is_device_only, (gate_up, down)))

    def forward(self, rows: Tensor, ends: Tensor, slots: Tensor | None = None) -> Tensor:
        gate_up = grouped_linear(rows, self._gate_up, ends)
        return grouped_linear(self._kernels.apply_mul(Function.SILU, gate_up), self._down, ends)


class Expert:
    """One gated feed-forward network; its layers may be of codes."""

    def __init__(self, gate_up: AnyLinear, down: AnyLinear) -> None:
        self._gate_up, self._down = gate_up, down

    def __call__(self, rows: Tensor) -> Tensor:
        """Map `[num_rows, hidden_size]` to a new tensor of the same shape."""
        return self._down(self._gate_up.gated(Function.SILU, rows))


class SeparateExperts:
    """Experts that are computed one after another, each for the rows that are its own.

    So each layer has a product that suits its weight, and where that gives a row the same bits in any
    company, so do these experts. The numbers of rows are read on the host. Adapters may change them.
    """

    def __init__(
        self, experts: Sequence[Callable[[Tensor], Tensor]], adapters: AdapterPlaces | None = None
    ) -> None:
        self._experts, self._adapters = experts, adapters
        self.is_capturable = False

    def forward(self, rows: Tensor, ends: Tensor, slots: Tensor | None = None) -> Tensor:
        out, start = torch.empty_like(rows), 0
        for expert, end in zip(self._experts, ends.tolist(), strict=True):
            if end > start:
                with self._reading(None if slots is None else slots[start:end]):
                    out[start:end] = expert(rows[start:end])
            start = end
        return out

    def _reading(self, slots: Tensor | None) -> AbstractContextManager[None]:
        if slots is None or self._adapters is None:
            return nullcontext()
        return self._adapters.reading(slots)


def load_experts(
    config: MixtureConfig, weights: WeightReader, kernels: LayerKernels, prefix: str, share: ExpertShare
) -> Experts:
    """Read a share of the experts, each stored under its number after `prefix`.

    Where the files have no such, but fused ones, these are read. They are separate as soon as one layer of
    one of them is quantized, in the files or while loading, under batch-invariant kernels, and on a CPU
    where the engine takes adapters.

    Raises:
        InvalidModelError: a tensor is missing or has another shape.
    """
    names, hidden_size, size = config.names, config.hidden_size, config.intermediate_size
    numbers, is_adapted = share.numbers, _takes_adapters(weights)
    if is_adapted:
        _tell_of_other_experts(config, weights, prefix, numbers)
    if f"{prefix}.{numbers[0]}.{names.down}.weight" not in weights and f"{prefix}.down_proj" in weights:
        return _load_fused(config, weights, kernels, prefix, share)
    layers = [f"{prefix}.{n}.{name}" for n in numbers for name in (names.gate, names.up, names.down)]
    if kernels.is_invariant or is_adapted or any(is_to_quantize(weights, layer) for layer in layers):
        load = partial(load_expert, names, weights, kernels, takes_adapters=is_adapted)
        paths = [f"{prefix}.{number}" for number in numbers]
        return SeparateExperts([load(path, hidden_size, size, share) for path in paths], weights.adapters)
    gate_up = weights.load_stacked(
        [f"{prefix}.{number}.{name}.weight" for number in numbers for name in (names.gate, names.up)],
        [(size, hidden_size)] * (2 * len(numbers)),
        parts=[None if share.inner is None else Part(0, share.inner)] * (2 * len(numbers)),
    )
    down = weights.load_stacked(
        [f"{prefix}.{number}.{names.down}.weight" for number in numbers],
        [(hidden_size, size)] * len(numbers),
        parts=[share.columns.columns] * len(numbers),
    )
    return GroupedExperts(
        gate_up.view(len(numbers), -1, hidden_size),
        down.view(len(numbers), hidden_size, -1),
        kernels,
    )


def _load_fused(
    config: MixtureConfig, weights: WeightReader, kernels: LayerKernels, prefix: str, share: ExpertShare
) -> Experts:
    """Read a share of experts in one tensor for each projection, as Transformers' modules have them."""
    size, hidden_size = config.intermediate_size, config.hidden_size
    shapes = {f"{prefix}.gate_up_proj": (2 * size, hidden_size), f"{prefix}.down_proj": (hidden_size, size)}
    is_adapted = _takes_adapters(weights)
    is_separate = kernels.is_invariant or is_adapted or any(is_to_quantize(weights, name) for name in shapes)
    dtype = weights.linear_dtype if is_separate else weights.dtype
    part = None if len(share.numbers) == config.num_experts else Part(0, share.numbers)
    gate_up, down = (
        weights.load(name, (config.num_experts, *shape), dtype, part) for name, shape in shapes.items()
    )
    num_bytes = gate_up.nbytes + down.nbytes
    if (inner := share.inner) is not None:
        own = slice(inner.start, inner.stop)
        if not share_to_read(weights, f"{prefix}.gate_up_proj", share.rows).is_whole:
            gate_up = gate_up.view(len(gate_up), 2, size, -1)[:, :, own].flatten(1, 2)
        if not share_to_read(weights, f"{prefix}.down_proj", share.columns).is_whole:
            down = down[:, :, own].contiguous()
    weights.loaded_bytes += gate_up.nbytes + down.nbytes - num_bytes
    if not is_separate:
        return GroupedExperts(gate_up, down, kernels)
    names, sizes, shares = list(shapes), ([size, size], [hidden_size]), (share.rows, share.columns)
    own_names = (config.names.gate, config.names.up), (config.names.down,)

    def load(number: int, name: str, weight: Tensor, kind: int) -> AnyLinear:
        layer = make_linear(weights, name, weight, None, kernels, out_sizes=sizes[kind], share=shares[kind])
        if not is_adapted:
            return layer
        layers, in_size = [f"{prefix}.{number}.{own}" for own in own_names[kind]], shapes[name][1]
        return adapted(
            weights, layer, layers, kernels, in_size=in_size, out_sizes=sizes[kind], share=shares[kind]
        )

    experts = zip(share.numbers, gate_up, down, strict=True)
    return SeparateExperts(
        [
            Expert(load(number, names[0], own_gate_up, 0), load(number, names[1], own_down, 1))
            for number, own_gate_up, own_down in experts
        ],
        weights.adapters,
    )


def _takes_adapters(weights: WeightReader) -> bool:
    """Say whether adapters may change experts: on a CPU, where these are computed one after another."""
    return weights.adapters is not None and weights.device.type == "cpu"


def _tell_of_other_experts(config: MixtureConfig, weights: WeightReader, prefix: str, numbers: range) -> None:
    """Tell of the experts that other ranks have."""
    assert weights.adapters is not None, "the engine takes adapters"
    others = [number for number in range(config.num_experts) if number not in numbers]
    names = (config.names.gate, config.names.up, config.names.down)
    weights.adapters.elsewhere(f"{prefix}.{number}.{name}" for number in others for name in names)


def load_expert(
    names: MixtureNames,
    weights: WeightReader,
    kernels: LayerKernels,
    prefix: str,
    hidden_size: int,
    intermediate_size: int,
    share: ExpertShare,
    *,
    takes_adapters: bool = False,
) -> Expert:
    """Read a share of one expert, each of its layers as it is stored or as the plan of quantization says.

    With `takes_adapters` it computes the rows of a step in their order, and adapters may change it.

    Raises:
        InvalidModelError: a tensor is missing or has another shape.
    """
    load = load_projection if takes_adapters else load_plain_projection
    inner = [f"{prefix}.{name}" for name in (names.gate, names.up)]
    down, sizes = f"{prefix}.{names.down}", [intermediate_size] * 2
    return Expert(
        load(weights, inner, kernels, in_size=hidden_size, out_sizes=sizes, share=share.rows),
        load(
            weights,
            [down],
            kernels,
            in_size=intermediate_size,
            out_sizes=[hidden_size],
            share=share.columns,
        ),
    )


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
