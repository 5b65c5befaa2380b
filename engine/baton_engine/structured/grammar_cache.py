"""The outcomes of compilations, as many as the bounds allow."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, TypeAlias

from baton_core.errors import InvalidRequestError
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_engine.structured.interface import Grammar

MAX_CACHED: Final = 256
MAX_CACHED_BYTES: Final = 256 << 20

Outcome: TypeAlias = Grammar | InvalidRequestError


class GrammarCache:
    """Keeps what was used last. Not safe to share between threads."""

    def __init__(self) -> None:
        self._outcomes: OrderedDict[StructuredOutputsParams, tuple[Outcome, int]] = OrderedDict()
        self._num_bytes = 0

    def get(self, params: StructuredOutputsParams) -> Outcome | None:
        """Return what came of a grammar, which counts as a use of it; None where that is not kept."""
        if params not in self._outcomes:
            return None
        self._outcomes.move_to_end(params)
        return self._outcomes[params][0]

    def put(self, params: StructuredOutputsParams, outcome: Outcome) -> None:
        """Keep an outcome, and as many of the others as fit beside it."""
        if params in self._outcomes:
            self._num_bytes -= self._outcomes.pop(params)[1]
        num_bytes = params.num_characters + (outcome.num_bytes if isinstance(outcome, Grammar) else 0)
        self._outcomes[params] = outcome, num_bytes
        self._num_bytes += num_bytes
        while len(self._outcomes) > MAX_CACHED or (
            len(self._outcomes) > 1 and self._num_bytes > MAX_CACHED_BYTES
        ):
            self._num_bytes -= self._outcomes.popitem(last=False)[1][1]
