"""The interface of a model; the families in this package implement it."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from baton_engine.models.input_embeds import InputEmbeds
from baton_engine.models.step_attention import StepAttention


class Model(Protocol):
    """A loaded model: token ids to hidden states, hidden states to logits.

    Called from the engine thread only, under inference mode.
    """

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def is_capturable(self) -> bool:
        """True if `forward` never makes the host wait for the device, so that a CUDA graph can hold it."""
        ...

    def forward(
        self,
        token_ids: Tensor,
        attention: StepAttention,
        rows: Tensor | None = None,
        embeds: InputEmbeds | None = None,
    ) -> Tensor:
        """Return the final hidden states `[num_rows, hidden_size]` of `token_ids` `[num_tokens] int64`.

        `rows` `[num_rows] int64` are the tokens whose hidden states are wanted, at least one; None wants
        those of all. `embeds` stand in the place of embeddings of tokens; they are given, by this name, to
        models alone that have an `embedding_size`. Writes the K and V of every token to the cache behind
        `attention`. A token's hidden state depends on its own sequence alone.
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits `[num_rows, vocab_size]` of hidden states `[num_rows, hidden_size]`.

        A model without an output head has none: its steps pool.
        """
        ...
