"""Calls that are only placed: an endpoint picker runs a route's handler up to the choice of workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from baton_core.requests.request_context import NamedWorkers
from baton_router.process.generation_service import GenerationService
from baton_router.requests.request_reader import PreparedRequest

PICKING: Final = "baton.picking"
"""Key of the scope of a call that is only placed, for its `Picking`."""


class PickedError(Exception):
    """Ends the handler of a call that is only placed."""


class Picking:
    """The workers that one call gets.

    Args:
        num_open: calls that got no workers, and that have not begun since.
    """

    def __init__(self, num_open: int) -> None:
        self.named: NamedWorkers | None = None
        """The workers; None where the call has to wait for some, or has several prompts."""
        self.is_waiting = False
        """True if no worker has room for it."""
        self._num_open = num_open

    def place(self, service: GenerationService, prepared: Sequence[PreparedRequest]) -> None:
        """Choose the workers of a call whose prompts are tokenized, and end it.

        Raises:
            RequestError: OVERLOADED.
            PickedError: it is placed.
        """
        if len(prepared) == 1:
            self.named = service.pick(prepared[0], self._num_open)
            self.is_waiting = self.named is None
        raise PickedError
