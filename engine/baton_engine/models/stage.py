"""One stage of a pipeline: hidden states come from the stage before it and go to the one behind it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from baton_engine.ranks.ranks import Ranks


class Stage:
    """The links of this rank's stage to its neighbours."""

    def __init__(self, ranks: Ranks) -> None:
        self._number = ranks.place.stage
        self._links = ranks.pipeline
        self.is_first = ranks.place.is_first_stage
        self.is_last = ranks.place.is_last_stage

    def take_over(
        self, number: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> list[Tensor]:
        """Wait for so many tensors of that shape from the stage before."""
        empty = [torch.empty(tuple(shape), dtype=dtype, device=device) for _ in range(number)]
        return self.take_into(empty)

    def take_into(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Wait for tensors from the stage before, in this order, into the memory of these."""
        return [self._links.receive(one, self._number - 1) for one in tensors]

    def hand_on(self, *tensors: Tensor) -> Tensor:
        """Send tensors to the stage behind, in this order; returns the last one."""
        for one in tensors:
            self._links.send(one.contiguous(), self._number + 1)
        return tensors[-1]
