"""The progress of a sequence in the grammar of its output.

Thinking is free of the grammar, which begins after it, but does not end the output. Where the prompt has
not started to think, the first tokens of the output may; once the grammar has begun, no token of it counts
as thinking.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Final

import numpy as np

from baton_core.errors import InvalidRequestError
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_engine.sampling.thinking import Thinking
from baton_engine.structured.interface import GrammarState, TokenMask, refusal

MAX_FOLLOW_S: Final = 0.5
"""Processor time that following a grammar may take, beside `MAX_FOLLOW_S_PER_TOKEN` for each of its steps."""
MAX_FOLLOW_S_PER_TOKEN: Final = 0.02


@dataclass(slots=True)
class _TimeLeft:
    left_s: float


class GrammarProgress:
    """The progress of one sequence. Its owner advances `thinking` by the tokens that this does not take.

    Args:
        refuse: called with the error of a grammar that takes too much time to follow, before it is raised.
    """

    def __init__(
        self,
        state: GrammarState,
        thinking: Thinking | None,
        params: StructuredOutputsParams,
        refuse: Callable[[InvalidRequestError], None],
    ) -> None:
        self._params = params
        self._refuse = refuse
        self._time = _TimeLeft(MAX_FOLLOW_S)
        self._state = state
        self._thinking = thinking
        self._has_begun = False

    def fork(self, thinking: Thinking | None) -> GrammarProgress:
        """Return the same progress, which goes on with its own thinking; both are charged to one budget."""
        forked = copy(self)
        forked._state, forked._thinking = self._state.fork(), thinking
        return forked

    def takes(self, token_id: int) -> bool:
        """Take the next token of the output, unless it is thought; return whether it was taken.

        Raises:
            ValueError: the token does not fit the grammar.
            InvalidRequestError: it takes too much time to follow.
        """
        if self._is_thinking or token_id == self._opening_token_id:
            return False
        self._has_begun = True
        with self._bounded():
            is_taken = self._state.accept(token_id)
        if not is_taken:
            raise ValueError(f"token {token_id} does not fit the grammar of the output")
        return True

    def mask(self, num_words: int) -> TokenMask | None:
        """Return the mask `[num_words]` of allowed next tokens; None where all are.

        Raises:
            InvalidRequestError: it takes too much time to follow.
        """
        if self._is_thinking:
            return None
        row = np.zeros(num_words, dtype=np.int32)
        opening = self._opening_token_id
        if opening is None or not self._has_opened:
            with self._bounded():
                self._state.fill_mask(row)
        if opening is not None:
            row.view(np.uint32)[opening // 32] |= np.uint32(1 << opening % 32)
        return row

    @property
    def held_off(self) -> Collection[int]:
        """The tokens that would end the output within a thought, before the grammar has begun."""
        is_open = self._thinking is not None and self._thinking.is_thinking and not self._thinking.may_end
        return self._state.end_token_ids if is_open else ()

    @property
    def is_over(self) -> bool:
        """True at the end of the grammar: only end tokens follow, and other rules do not apply."""
        return self._state.is_terminated

    @property
    def end_mask(self) -> TokenMask:
        """The mask of the tokens that end the output."""
        return self._state.end_mask

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        """Charge this thread's time to the grammar's budget, which grows with each call."""
        began_s = time.thread_time()
        yield
        self._time.left_s += MAX_FOLLOW_S_PER_TOKEN / 2 - (time.thread_time() - began_s)
        if self._time.left_s < 0.0:
            error = _too_slow(self._params)
            self._refuse(error)
            raise error

    @property
    def _is_thinking(self) -> bool:
        return self._thinking is not None and self._thinking.is_thinking

    @property
    def _opening_token_id(self) -> int | None:
        """The next token of a start of thinking; None where the grammar has to begin or has begun."""
        if self._thinking is None or self._has_begun or self._thinking.has_ended:
            return None
        return self._thinking.pending_token_id

    @property
    def _has_opened(self) -> bool:
        return self._thinking is not None and self._thinking.num_matched > 0


def _too_slow(params: StructuredOutputsParams) -> InvalidRequestError:
    most = f"{MAX_FOLLOW_S_PER_TOKEN * 1e3:g} ms of processor time for each token of the output"
    return refusal(params, f"what takes at most {most}, and {MAX_FOLLOW_S:g} s besides")
