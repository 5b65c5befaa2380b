"""The interface through which the engine samples tokens, chosen once at start.

Token = argmax over logit / temperature + Gumbel noise; the noise depends on (seed, position, token id) alone,
so a token depends on its own row and on neither batch nor machine. Filters apply in the order min_p, top_k,
top_p, after the temperature, each to what the one before left. Ties, also at the boundary of a filter, go
to the lower token id. Called from the engine thread only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from baton_kernels.interface.upload import upload

MASS_BITS: Final = 44
"""Probability masses are counted in steps of 2**-44 of the best token's, as integers: their sum depends on no
order, and that of 2**18 tokens fits."""


class Refusal(IntEnum):
    """A reason why a row of logits gives no token, in the place of one."""

    NOT_A_NUMBER = -1
    INFINITE = -2
    NOTHING_LEFT = -3

    @property
    def reason(self) -> str:
        """The reason in words."""
        return _REASONS[self]


_REASONS: Final = {
    Refusal.NOT_A_NUMBER: "the logits are not numbers (NaN)",
    Refusal.INFINITE: "the logits are infinite",
    Refusal.NOTHING_LEFT: "no token is left: all logits are minus infinity",
}


@dataclass(frozen=True, slots=True, eq=False)
class SampleBatch:
    """Sampling parameters of each row of logits; all `[num_rows]`, on the logits' device."""

    seeds: Tensor
    """`int64`, the bits of the noise's 64-bit key."""
    positions: Tensor
    """`int64`, of the sampled token in its sequence: the counter of the noise."""
    top_k: Tensor
    """`int64`, how many tokens stay; 0 is all."""
    temperature: Tensor
    """`float64`, rounded to float32 where it divides; 0 is greedy."""
    top_p: Tensor
    """`float64`, the share of the mass that stays."""
    min_score: Tensor
    """`float64`, the logarithm of min_p: least score, relative to the best token's, that stays."""

    @classmethod
    def build(
        cls,
        *,
        seeds: Sequence[int],
        positions: Sequence[int],
        top_k: Sequence[int],
        temperature: Sequence[float],
        top_p: Sequence[float],
        min_p: Sequence[float],
        device: torch.device | str = "cpu",
    ) -> SampleBatch:
        """Put the values of all rows on the device, in one copy. Seeds may be signed or unsigned."""
        keys = np.array([seed & (1 << 64) - 1 for seed in seeds], dtype=np.uint64).view(np.int64)
        counts = [np.array(values, dtype=np.int64) for values in (positions, top_k)]
        shares = [np.array(values, dtype=np.float64) for values in (temperature, top_p)]
        return cls(*upload((keys, *counts, *shares, min_scores(min_p)), device))

    @property
    def columns(self) -> tuple[Tensor, ...]:
        """The columns, in the order above."""
        return (self.seeds, self.positions, self.top_k, self.temperature, self.top_p, self.min_score)

    def rows(self, index: Tensor) -> SampleBatch:
        """The rows `index` `[n] int64` alone."""
        return SampleBatch(*(column[index] for column in self.columns))


def min_scores(min_p: Sequence[float]) -> NDArray[np.float64]:
    """Return the logarithms of min_p, minus infinity for 0."""
    if not any(min_p):
        return np.full(len(min_p), -np.inf)
    with np.errstate(divide="ignore"):
        return np.log(np.array(min_p, dtype=np.float64))


class SamplingKernels(ABC):
    """Sampling kernels of a device."""

    is_recordable: bool = False
    """A CPU graph can replay them: they call C++ kernels alone, and read no number of their inputs."""

    @abstractmethod
    def sample(self, logits: Tensor, batch: SampleBatch) -> Tensor:
        """Sample one token per row of `logits` `[num_rows, vocab_size]`; return `[num_rows] int64`.

        A row that holds NaN or +inf, or nothing but -inf, gives a `Refusal`. One that holds both NaN and +inf
        gives either.
        """
