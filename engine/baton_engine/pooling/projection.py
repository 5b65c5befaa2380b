"""Linear layers behind an encoder or decoder, and the functions that follow them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

IDENTITY: Final = "Identity"
ACTIVATIONS: Final = (IDENTITY, "GELU", "ReLU", "SiLU", "Sigmoid", "Softmax", "Tanh")
"""Names of torch's modules."""
CONFIG_ACTIVATIONS: Final = {"gelu": "GELU", "relu": "ReLU", "silu": "SiLU", "tanh": "Tanh"}
"""The same by the names of Transformers' configurations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionPlan:
    """A linear layer with an activation, and a layer norm behind it."""

    names: tuple[str, ...]
    """Names of the layer, of which the files hold one."""
    in_size: int
    out_size: int
    is_input_normalized: bool = False
    """True if the layer takes its input divided by its length."""
    has_bias: bool | None = None
    """None: as the files have it."""
    activation: str = IDENTITY
    """One of `ACTIVATIONS`."""
    norm: str | None = None
    """Name of the layer norm; None without one."""
    norm_eps: float = 1e-5
    folder: str = ""
    """Folder inside of the model's that holds the layer; empty is the model's own."""
    token_rows: tuple[tuple[int, int | None], ...] = ()
    """For each output, the tokens whose rows of the output head make its weights: the first's, less the
    second's. Empty where the files hold the layer."""
