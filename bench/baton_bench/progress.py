"""The bar of a benchmark, where tqdm is installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Self


class Progress:
    """Counts finished requests.

    Args:
        total: the number of all requests.
        unit: the name of a request on the bar.
    """

    def __init__(self, total: int, unit: str, *, is_shown: bool) -> None:
        self._bar: Any = None
        if is_shown and find_spec("tqdm") is not None:
            # An extra that figures do without.
            from tqdm import tqdm

            self._bar = tqdm(total=total, unit=unit, dynamic_ncols=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def add(self, *_: object) -> None:
        """One more is done, whatever it is."""
        if self._bar is not None:
            self._bar.update()
