"""Embeddings that requests bring, which a model puts in the place of those of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from baton_core.worker.step_plan import SequenceSlice
from baton_kernels.interface.upload import upload


@dataclass(frozen=True, slots=True, kw_only=True)
class InputEmbeds:
    """Rows of embeddings, on the model's device and in its dtype."""

    rows: Tensor
    """`[num_rows] int64`: their places among the tokens of the step."""
    values: Tensor
    """`[num_rows, embedding_size]`."""

    def put(self, embedded: Tensor) -> Tensor:
        """Return `embedded` `[num_tokens, embedding_size]` with the rows in it, which change in place."""
        embedded[self.rows] = self.values
        return embedded


def input_embeds(
    slices: Sequence[SequenceSlice], dtype: torch.dtype, device: torch.device
) -> InputEmbeds | None:
    """Return the embeddings that slices bring; None where they bring none."""
    parts, start = [], 0
    for piece in slices:
        parts += [(start + one.start, one) for one in piece.embeds]
        start += piece.num_scheduled_tokens
    if not parts:
        return None
    rows = np.concatenate([np.arange(first, first + one.num_tokens) for first, one in parts])
    values = [
        torch.frombuffer(bytearray(one.data), dtype=getattr(torch, one.dtype))
        .view(-1, one.hidden_size)
        .to(device, dtype)
        for _, one in parts
    ]
    (index,) = upload((rows.astype(np.int64),), device)
    return InputEmbeds(rows=index, values=torch.cat(values))
