"""Loading of linear layers."""

from __future__ import annotations

from collections.abc import Sequence

from baton_engine.models.linear import Linear
from baton_engine.weights import WeightReader


def load_projection(
    weights: WeightReader,
    prefix: str,
    names: Sequence[str],
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
    sizes = out_sizes if len(names) > 1 else [sum(out_sizes)]
    weight = weights.load_stacked(
        [f"{prefix}.{name}.weight" for name in names], [(n, in_size) for n in sizes]
    )
    if not has_bias:
        return Linear(weight)
    return Linear(
        weight, weights.load_stacked([f"{prefix}.{name}.bias" for name in names], [(n,) for n in sizes])
    )
