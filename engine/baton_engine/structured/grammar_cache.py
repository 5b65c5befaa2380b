"""The outcomes of compilations, as many as the bounds allow."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, TypeAlias

from baton_core.errors import InvalidRequestError
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_engine.structured.interface import Grammar

MAX_CACHED: Final = 256
MAX_CACHED_BYTES: Final = 256 << 20
MAX_SIZES: Final = 4096
"""Grammars whose sizes are known, also after they are dropped."""

Outcome: TypeAlias = Grammar | InvalidRequestError


class GrammarCache:
    """Keeps what was used last. Not safe to share between threads."""

    def __init__(self) -> None:
        self._outcomes: OrderedDict[StructuredOutputsParams, tuple[Outcome, int]] = OrderedDict()
        self._num_bytes = 0
        self._sizes: OrderedDict[int, int] = OrderedDict()
        """The most bytes that were noted of each grammar, by the hash of its parameters."""

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

    def note_size(self, params: StructuredOutputsParams, num_bytes: int) -> int:
        """Note the bytes of a grammar that was just compiled; returns the most that were ever noted of it.

        So one that is compiled again without a trial counts as much as after its last one.
        """
        key = hash(params)
        self._sizes[key] = num_bytes = max(num_bytes, self._sizes.pop(key, 0))
        if len(self._sizes) > MAX_SIZES:
            self._sizes.popitem(last=False)
        return num_bytes
