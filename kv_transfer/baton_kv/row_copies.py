"""Copies rows of one pool into another, in memory that this process can read."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from baton_kv.layouts import Blocks

Numbers = npt.NDArray[np.int64]


class CopyRows(Protocol):
    """Copies rows without the interpreter's lock; both arrays are contiguous and do not overlap."""

    def __call__(
        self, source: Blocks, source_rows: Numbers, target: Blocks, target_rows: Numbers, *, past_caches: bool
    ) -> None:
        """Write rows of `source` to equally many rows of `target`; all of them are there.

        `past_caches` allows a way that leaves nothing of it in the processor's caches.
        """


def copy_rows(
    source: Blocks, source_rows: Numbers, target: Blocks, target_rows: Numbers, *, past_caches: bool
) -> None:
    """Copy row by row with numpy: works everywhere."""
    for source_row, target_row in zip(source_rows.tolist(), target_rows.tolist(), strict=True):
        target[target_row] = source[source_row]
