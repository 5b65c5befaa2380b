"""The open requests of an engine, under the names of vLLM's class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType


class OutputProcessor:
    """A view of open requests, by which trainers count and end them.

    Args:
        requests: the open requests by their ids.
        end: ends requests, and returns the ids of those that were open.
    """

    def __init__(self, requests: Mapping[str, object], end: Callable[[Iterable[str]], list[str]]) -> None:
        self._requests, self._end = requests, end

    @property
    def request_states(self) -> Mapping[str, object]:
        """The open requests by their ids; there is no more to a value than that it is there."""
        return MappingProxyType(self._requests)

    def get_num_unfinished_requests(self) -> int:
        return len(self._requests)

    def has_unfinished_requests(self) -> bool:
        return bool(self._requests)

    def abort_requests(self, request_ids: Iterable[str], internal: bool = False) -> list[str]:
        """End requests as the engine's own method does; returns the ids of those that were open."""
        return self._end(request_ids)
