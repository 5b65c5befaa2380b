"""What trying a model without native code tells: its shape, or why the engine cannot run it."""

from __future__ import annotations

from dataclasses import dataclass


class UnsupportedError(Exception):
    """A model that the engine cannot run; says what it has that stands in the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTrace:
    """What a forward pass without weights told of a model."""

    num_kv_heads: int
    head_dim: int
    """The larger one of keys and values."""
    layer_windows: tuple[int | None, ...]
    vocab_size: int
    """Width of the logits."""
