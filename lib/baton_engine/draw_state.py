"""What the rules of a sequence's draws remember of its tokens.

A cache alone: made again from the tokens whenever it is missing or has taken other ones. So a sequence that
was preempted or handed over draws as if nothing had happened.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from baton_core.errors import InvalidRequestError
from baton_core.requests.draw_rules import DrawRules
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_core.worker.step_plan import DrawHistory, SeqId
from baton_engine.bad_words import BadWords
from baton_engine.grammar_progress import GrammarProgress
from baton_engine.logits_processors import LogitsProcessors
from baton_engine.structured.interface import Grammar, TokenMask
from baton_engine.thinking import Thinking
from baton_engine.token_counts import TokenCounts

MAX_STATES: Final = 512
"""More than sequences run; a step with more rows than that keeps as many as it has."""
MAX_TOKENS: Final = 2**22
"""Of the prompts and outputs that states hold, those of a step's own rows excepted."""


class Forms(Protocol):
    """Where the compiled forms of outputs are found."""

    def get(self, params: StructuredOutputsParams) -> Grammar: ...


class NoForms:
    """Of an engine that compiles none."""

    def get(self, params: StructuredOutputsParams) -> Grammar:
        raise InvalidRequestError("structured_outputs", params.form, "None, this engine compiles no forms")


class TokenBias:
    """What is added to the logits of some tokens."""

    def __init__(self, by_token: Mapping[int, float]) -> None:
        self.token_ids = np.fromiter(by_token.keys(), np.int64)
        self.values = np.fromiter(by_token.values(), np.float64)


class DrawState:
    """The rules of one sequence and how far they have come in its output.

    Raises:
        InvalidRequestError: it names a processor that there is not, or a form that cannot be had.
    """

    def __init__(
        self, history: DrawHistory, vocab_size: int, processors: LogitsProcessors, forms: Forms
    ) -> None:
        rules, params = history.rules, history.rules.params
        self.history = history
        """The one it was advanced to last."""
        self._vocab_size = vocab_size
        self._num_words = -(-vocab_size // 32)
        self._num_taken = 0
        allowed = params.allowed_token_ids
        self._allowed = None if allowed is None else _mask_of(allowed, self._num_words)
        self._bad_words = BadWords(rules.bad_words)
        self._ending = [token_id for token_id in rules.ending_token_ids if token_id < vocab_size]
        self.bias = TokenBias(params.logit_bias) if params.logit_bias else None
        self.processors = processors.of(params)
        self.counts: TokenCounts | None = None
        """None where there are no penalties; of the prompt's tokens too where they are penalised."""
        if params.has_penalties:
            self.counts = TokenCounts(history.prompt_token_ids if params.repetition_penalty != 1.0 else ())
        self._thinking = Thinking(rules.thinking) if rules.thinking else None
        self._grammar: GrammarProgress | None = None
        if params.structured_outputs is not None:
            state = forms.get(params.structured_outputs).new_state()
            self._grammar = GrammarProgress(state, self._thinking)

    def precedes(self, history: DrawHistory) -> bool:
        """Whether it may be advanced to `history`: the same rules, and the output goes on."""
        taken, output = self.history, history.output_token_ids
        if taken.rules is not history.rules or self._num_taken > len(output):
            return False
        return not self._num_taken or output[self._num_taken - 1] == taken.output_token_ids[-1]

    def advance(self, history: DrawHistory) -> None:
        """Take the tokens that `history` has beyond those taken.

        Raises:
            ValueError: a token does not go on with the form that the output must have.
        """
        new = history.output_token_ids[self._num_taken :]
        if self.counts is not None:
            self.counts.add(new)
        for token_id in new if self._thinking or self._grammar else ():
            is_form = self._grammar is not None and self._grammar.takes(token_id)
            if self._thinking is not None and not is_form:
                self._thinking.advance(token_id)
        self._num_taken = len(history.output_token_ids)
        self.history = history

    @property
    def rules(self) -> DrawRules:
        return self.history.rules

    @property
    def num_tokens(self) -> int:
        """Of the prompt and the output that it holds."""
        return len(self.history.prompt_token_ids) + len(self.history.output_token_ids)

    def exclusions(self) -> tuple[TokenMask | None, list[int]]:
        """Return `[ceil(vocab_size / 32)]` of the tokens that may be drawn and tokens that may not.

        None stands for all tokens. At least one may be drawn.
        """
        blocked = self._bad_words.completions(self.history.output_token_ids)
        if self._num_taken < self.rules.params.min_tokens:
            blocked += self._ending
        mask = self._mask()
        if mask is None and len(blocked) >= self._vocab_size:
            mask = _mask_of(range(self._vocab_size), self._num_words)
        if mask is None:
            return None, blocked
        if blocked:
            mask &= ~_mask_of(blocked, self._num_words)
        return mask if mask.any() else _mask_of([self.last_token_id], self._num_words), []

    def _mask(self) -> TokenMask | None:
        row = self._grammar.mask(self._num_words) if self._grammar is not None else None
        if self._allowed is None:
            return row
        return self._allowed.copy() if row is None else row & self._allowed

    @property
    def forced_token_id(self) -> int | None:
        """The one token that may be drawn; None where the rest decides."""
        return self._thinking.forced_token_id if self._thinking is not None else None

    @property
    def last_token_id(self) -> int:
        """What is drawn where nothing may be.

        The end of a form, else the lowest end token that the rules name, else token 0.
        """
        of_form = self._grammar.last_token_id if self._grammar is not None else None
        return min(self._ending, default=0) if of_form is None else of_form


class DrawStates:
    """The states of the sequences that drew last; the others are forgotten, the least recent first."""

    def __init__(
        self,
        processors: LogitsProcessors | None = None,
        forms: Forms | None = None,
        max_states: int = MAX_STATES,
        max_tokens: int = MAX_TOKENS,
    ) -> None:
        self._processors = processors or LogitsProcessors({})
        self._forms = forms or NoForms()
        self._max_states = max_states
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._states: OrderedDict[SeqId, DrawState] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def take(self, history: DrawHistory, vocab_size: int) -> DrawState:
        """Return the state of a sequence after all of `history`; it stays valid until the next call for it.

        Raises:
            Exception: whatever its rules, its grammar or a token of its output give rise to; nothing is kept.
        """
        state = self._states.pop(history.seq_id, None)
        self._num_tokens -= 0 if state is None else state.num_tokens
        if state is None or not state.precedes(history):
            state = DrawState(history, vocab_size, self._processors, self._forms)
        state.advance(history)
        self._states[history.seq_id] = state
        self._num_tokens += state.num_tokens
        return state

    def clear(self) -> None:
        """Forget all."""
        self._states.clear()
        self._num_tokens = 0

    def trim(self, num_rows: int) -> None:
        """Forget what is beyond the limits after a step of `num_rows` draws, which keeps its own."""
        while len(self._states) > num_rows and self._has_too_much:
            _, state = self._states.popitem(last=False)
            self._num_tokens -= state.num_tokens

    @property
    def _has_too_much(self) -> bool:
        return len(self._states) > self._max_states or self._num_tokens > self._max_tokens


def _mask_of(token_ids: Sequence[int], num_words: int) -> NDArray[np.int32]:
    bits = np.zeros(32 * num_words, dtype=np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)
