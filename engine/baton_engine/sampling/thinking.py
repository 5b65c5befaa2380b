"""The progress of a sequence in its thinking, a function of its output tokens alone.

Thinking that starts again after its end has the whole budget.
"""

from __future__ import annotations

from baton_core.requests.sampling_rules import ThinkingBudget


class Thinking:
    """The thinking of one sequence; it begins inside where the prompt has started it."""

    def __init__(self, budget: ThinkingBudget) -> None:
        self._budget = budget
        self._num_thought = 0
        """Tokens since the start, including those of an incomplete end."""
        self.is_thinking = not budget.start_token_ids
        self.has_ended = False
        """True once thinking has ended."""
        self.num_matched = 0
        """Tokens at the end of the output that begin the awaited marker, the end of thinking or its start."""

    @property
    def may_end(self) -> bool:
        """True if the output may end while it thinks, although a grammar is to follow."""
        return self._budget.may_end

    def advance(self, token_id: int) -> None:
        """Take the next token of the output."""
        marker = self._marker
        self._num_thought += self.is_thinking
        self.num_matched = _advance_match(marker, self.num_matched, token_id)
        if marker and self.num_matched == len(marker):
            self.num_matched = self._num_thought = 0
            self.has_ended |= self.is_thinking
            self.is_thinking = not self.is_thinking

    @property
    def pending_token_id(self) -> int | None:
        """The next token of the awaited marker; None without one."""
        return self._marker[self.num_matched] if self._marker else None

    @property
    def forced_token_id(self) -> int | None:
        """The token of the end that has to come next; None while the budget lasts."""
        is_over = self.is_thinking and self._num_thought >= self._budget.num_tokens
        return self.pending_token_id if is_over else None

    @property
    def _marker(self) -> tuple[int, ...]:
        return self._budget.end_token_ids if self.is_thinking else self._budget.start_token_ids


def _advance_match(marker: tuple[int, ...], num_matched: int, token_id: int) -> int:
    """Return how many tokens of `marker` match after `token_id` followed `num_matched` of them."""
    tail = (*marker[:num_matched], token_id)
    lengths = range(min(len(tail), len(marker)), 0, -1)
    return next((length for length in lengths if tail[-length:] == marker[:length]), 0)
