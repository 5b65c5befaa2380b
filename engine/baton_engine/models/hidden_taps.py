"""Copies of hidden states on their way through a model's layers, for a head that drafts from them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class HiddenTaps:
    """The hidden states of the tokens of the last step, at some places of a decoder, side by side.

    Their memory stays where it is, so captured steps write it too.

    Args:
        layers: before which hidden states are copied, by number; None: the final ones, after their norm.
        max_num_tokens: tokens of the largest step.

    Attributes:
        states: `[max_num_tokens, num_places * hidden_size]`.
    """

    def __init__(
        self,
        layers: Sequence[int] | None,
        max_num_tokens: int,
        hidden_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.is_final = layers is None
        self._hidden_size = hidden_size
        self._layers = tuple(layers or ())
        width = max(1, len(self._layers)) * hidden_size
        self.states = torch.zeros(max_num_tokens, width, dtype=dtype, device=device)

    def take(self, layer: int, change: Tensor, hidden: Tensor) -> None:
        """Copy the input of a layer, `change + hidden` of `[num_tokens, hidden_size]`, if it is wanted."""
        for place, tapped in enumerate(self._layers):
            if tapped == layer:
                start = place * self._hidden_size
                torch.add(change, hidden, out=self.states[: len(hidden), start : start + self._hidden_size])

    def take_final(self, hidden: Tensor) -> None:
        """Copy the final hidden states `[num_tokens, hidden_size]`."""
        self.states[: len(hidden)].copy_(hidden)
