"""The result of a trial of a model without native code: its shape, or the reason why it cannot run."""

from __future__ import annotations

from dataclasses import dataclass


class UnsupportedError(Exception):
    """A model that the engine cannot run; says what it has that stands in the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTrace:
    """The shape of a model, as found by a forward pass without weights."""

    num_kv_heads: int
    head_dim: int
    """The larger one of keys and values."""
    layer_windows: tuple[int | None, ...]
    vocab_size: int
    """Width of the logits."""
