"""Loading of linear layers."""

from __future__ import annotations

from collections.abc import Sequence

from baton_engine.models.linear import Linear, make_linear
from baton_engine.weights import WeightReader
from baton_kernels.interface import LayerKernels


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
