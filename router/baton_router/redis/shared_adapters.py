"""The part of a router's adapters that routers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from baton_core.requests.adapter import Adapter


class SharedAdapters(Protocol):
    """The adapters of one router, of which those that it was told to load are shared."""

    @property
    def loaded(self) -> Sequence[Adapter]:
        """The adapters that were loaded since the start."""
        ...

    def follow(self, loaded: Sequence[Adapter]) -> None:
        """Serve these, beside what the router was started with."""
        ...
