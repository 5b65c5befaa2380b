"""Random weights in the place of a model's, for trials of speed and memory without the files."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from baton_engine.checkpoint.weights import Part, WeightReader

_SCALE: Final = 0.02
"""Standard deviation of the values, as models are initialised with."""


class DummyWeights(WeightReader):
    """Gives every tensor that a model asks for, without a file.

    A tensor's values follow from its name, so all workers of a cluster have the same.
    """

    def __contains__(self, name: str) -> bool:
        return True

    def digest(self) -> str:
        """Return the name that stands for these weights; all else of them follows from config.json."""
        return "dummy"

    def load_stacked(
        self,
        names: Sequence[str],
        shapes: Sequence[Sequence[int]],
        dtype: torch.dtype | None = None,
        parts: Sequence[Part | None] | None = None,
    ) -> Tensor:
        """Return random tensors, concatenated along their first axis, as `dtype` or else the reader's."""
        parts = parts or [None] * len(names)
        wanted = [_random(*one) for one in zip(names, shapes, parts, strict=True)]
        stacked = torch.cat(wanted).to(self.device, dtype or self.dtype)
        self.loaded_bytes += stacked.nbytes
        self.shapes |= dict(zip(names, map(tuple, shapes), strict=True))
        return stacked

    def _files(self, folder: Path) -> tuple[Path, ...]:
        return ()


def _random(name: str, shape: Sequence[int], part: Part | None) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    whole = torch.randn(tuple(shape), generator=generator) * _SCALE
    return whole if part is None else whole.index_select(part.axis, torch.tensor(part.indices))
