"""The parameters of sampling at fixed addresses, for steps that are recorded once and replayed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from baton_core.worker.step_plan import SampleSpec, SequenceSlice
from baton_kernels.interface.sampling import SampleBatch, min_scores


class SampleInputs:
    """Room in the host's memory for the parameters of `max_num_rows` rows of logits."""

    def __init__(self, max_num_rows: int) -> None:
        self._integers = np.zeros((3, max_num_rows), dtype=np.int64)
        self._numbers = np.zeros((3, max_num_rows), dtype=np.float64)

    @staticmethod
    def takes(slices: Sequence[SequenceSlice]) -> bool:
        """Say whether one token of each slice is sampled, without rules, and nothing else is told."""
        return all(
            len(piece.samples) == 1
            and piece.samples[0].history is None
            and piece.samples[0].logprobs is None
            and piece.prompt_logprobs is None
            for piece in slices
        )

    def batch(self, size: int) -> SampleBatch:
        """Views of the first `size` places."""
        columns = [torch.from_numpy(column) for column in (*self._integers, *self._numbers)]
        return SampleBatch(*(column[:size] for column in columns))

    def fill(self, specs: Sequence[SampleSpec]) -> None:
        """Put the parameters of a step into the first places."""
        seeds, positions, top_k = self._integers[:, : len(specs)]
        temperature, top_p, min_score = self._numbers[:, : len(specs)]
        seeds.view(np.uint64)[:] = [spec.seed & (1 << 64) - 1 for spec in specs]
        positions[:] = [spec.position for spec in specs]
        top_k[:] = [spec.top_k for spec in specs]
        temperature[:] = [spec.temperature for spec in specs]
        top_p[:] = [spec.top_p for spec in specs]
        min_score[:] = min_scores([spec.min_p for spec in specs])

    def advance(self, num_rows: int) -> None:
        """Go on to the position behind each of the first places."""
        self._integers[1, :num_rows] += 1
