"""Copies of hidden states on their way through a model's layers, for a head that drafts from them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from baton_kernels.interface.kernels import LayerKernels


class HiddenTaps:
    """The hidden states of the tokens of the last step, at some places of a decoder.

    Their memory stays where it is, so captured steps write it too. Stages of a pipeline hand on those that
    they have, so that the last one has all.

    Args:
        layers: before which hidden states are copied, by number; None: the final ones, after their norm.
        max_num_tokens: tokens of the largest step.
    """

    def __init__(
        self,
        layers: Sequence[int] | None,
        max_num_tokens: int,
        hidden_size: int,
        kernels: LayerKernels,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.is_final = layers is None
        self._kernels = kernels
        self._layers = tuple(layers or ())
        shape = max(1, len(self._layers)), max_num_tokens, hidden_size
        self._states = torch.zeros(shape, dtype=dtype, device=device)

    def states_of_step(self, num_tokens: int) -> Tensor:
        """Return a copy of the states, `[num_tokens, num_places * hidden_size]`."""
        states = self._states[:, :num_tokens].transpose(0, 1)
        return states.clone(memory_format=torch.contiguous_format).flatten(1)

    def take(self, layer: int, hidden: Tensor) -> None:
        """Copy the input of a layer `[num_tokens, hidden_size]`, if it is wanted."""
        for place, tapped in enumerate(self._layers):
            if tapped == layer:
                self._kernels.copy(hidden, self._states[place, : len(hidden)])

    def take_final(self, hidden: Tensor) -> None:
        """Copy the final hidden states `[num_tokens, hidden_size]`."""
        self._kernels.copy(hidden, self._states[0, : len(hidden)])

    def before(self, layer: int, num_tokens: int) -> list[Tensor]:
        """Return the memory of what is tapped before earlier layers, `[num_tokens, hidden_size]` each."""
        return [
            self._states[place, :num_tokens] for place, tapped in enumerate(self._layers) if tapped < layer
        ]
