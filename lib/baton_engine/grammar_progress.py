"""How far a sequence has come in the form that its output must have.

Thinking has no form: a grammar waits for the end of a thought. Where the prompt has not started a thought,
the first tokens of the output may start one; once the form has begun, nothing in it is thought.
"""

from __future__ import annotations

import numpy as np

from baton_engine.structured.interface import GrammarState, TokenMask
from baton_engine.thinking import Thinking


class GrammarProgress:
    """Of one sequence. Its owner advances `thinking` by the tokens that this does not take."""

    def __init__(self, state: GrammarState, thinking: Thinking | None) -> None:
        self._state = state
        self._thinking = thinking
        self._has_begun = False

    def takes(self, token_id: int) -> bool:
        """Take the next token of the output, unless it is thought; return whether it was taken.

        An end token ends a form that is not complete, too: other rules may leave nothing to go on with.

        Raises:
            ValueError: the form does not go on with this token.
        """
        if self._is_thinking or token_id == self._opening_token_id:
            return False
        self._has_begun = True
        if not (self._state.accept(token_id) or self._state.break_off(token_id)):
            raise ValueError(f"token {token_id} does not go on with the form that the output must have")
        return True

    def mask(self, num_words: int) -> TokenMask | None:
        """Return `[num_words]` of the tokens that may come next; None where all may."""
        if self._is_thinking:
            return None
        row = np.zeros(num_words, dtype=np.int32)
        opening = self._opening_token_id
        if opening is None or not self._has_opened:
            self._state.fill_mask(row)
        if opening is not None:
            row.view(np.uint32)[opening // 32] |= np.uint32(1 << opening % 32)
        return row

    @property
    def last_token_id(self) -> int | None:
        """What is drawn where nothing else may be; None where that is not the form's to say."""
        return None if self._is_thinking else self._state.last_token_id

    @property
    def _is_thinking(self) -> bool:
        return self._thinking is not None and self._thinking.is_thinking

    @property
    def _opening_token_id(self) -> int | None:
        """What would start a thought, or go on with its start; None where the form has to come."""
        if self._thinking is None or self._has_begun or self._thinking.has_ended:
            return None
        return self._thinking.awaited_token_id

    @property
    def _has_opened(self) -> bool:
        return self._thinking is not None and self._thinking.num_matched > 0
