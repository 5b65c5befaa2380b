"""Memory for the embeddings of open requests, which the router keeps for those that migrate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from baton_core.errors import ErrorCode, RequestError
from baton_core.prompt_embeds import MAX_EMBEDS_BYTES
from baton_core.sessions.router_messages import RequestSpec

MAX_OPEN_BYTES: Final = 8 * MAX_EMBEDS_BYTES
"""Embeddings of all open requests together."""


class EmbedsMemory:
    """Counts the embeddings of all calls."""

    def __init__(self, max_bytes: int = MAX_OPEN_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0

    @contextmanager
    def hold(self, specs: Sequence[RequestSpec]) -> Iterator[None]:
        """Count the embeddings of one call's requests, until the block is left.

        Raises:
            RequestError: OVERLOADED, those of other calls leave no room for them.
        """
        num_bytes = sum(len(one.data) for spec in specs for one in spec.prompt_embeds)
        if num_bytes and self._num_bytes + num_bytes > self._max_bytes:
            text = (
                f"prompt_embeds of other requests take {self._num_bytes} bytes, these {num_bytes}; "
                f"allowed together: {self._max_bytes}"
            )
            raise RequestError(ErrorCode.OVERLOADED, text)
        self._num_bytes += num_bytes
        try:
            yield
        finally:
            self._num_bytes -= num_bytes
