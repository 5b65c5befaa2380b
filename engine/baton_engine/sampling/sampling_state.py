"""Sampling states: what logits processing keeps of a sequence's tokens.

A state is a cache: it is rebuilt from the tokens whenever it is missing or has taken other ones. So a
sequence that was preempted or migrated samples the same tokens.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from baton_core.errors import InvalidRequestError
from baton_core.requests.sampling_params import nothing_left
from baton_core.requests.sampling_rules import SamplingRules
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_core.worker.step_plan import SamplingHistory, SeqId
from baton_engine.sampling.bad_words import BadWords
from baton_engine.sampling.grammar_progress import GrammarProgress
from baton_engine.sampling.logits_processors import LogitsProcessors
from baton_engine.sampling.thinking import Thinking
from baton_engine.sampling.token_counts import TokenCounts
from baton_engine.structured.interface import Grammar, TokenMask

MAX_STATES: Final = 512
"""More than sequences run; a step with more rows than that keeps as many as it has."""
MAX_TOKENS: Final = 2**22
"""Tokens of the prompts and outputs that states hold, except for a step's own rows."""
MAX_GRAMMAR_BYTES: Final = 256 << 20
"""Memory of the grammars that states hold, except for a step's own rows."""


class Grammars(Protocol):
    """A source of compiled grammars."""

    @property
    def warms_up(self) -> bool:
        """True if the engine's warm-up follows a grammar: the first request with one then waits for less."""
        ...

    def get(self, params: StructuredOutputsParams) -> Grammar: ...

    def refuse(self, params: StructuredOutputsParams, error: InvalidRequestError) -> None:
        """Refuse further requests with a grammar that turned out to be slow."""
        ...


class NoGrammars:
    """The grammars of an engine that compiles none."""

    warms_up: Final = False

    def get(self, params: StructuredOutputsParams) -> Grammar:
        raise InvalidRequestError("structured_outputs", params.kind, "None, this engine compiles no grammars")

    def refuse(self, params: StructuredOutputsParams, error: InvalidRequestError) -> None:
        """Do nothing: none was compiled."""


class TokenBias:
    """Numbers that are added to the logits of some tokens."""

    def __init__(self, by_token: Mapping[int, float]) -> None:
        self.token_ids = np.fromiter(by_token.keys(), np.int64)
        self.values = np.fromiter(by_token.values(), np.float64)


class SamplingState:
    """The sampling rules of one sequence and their progress in its output.

    Raises:
        InvalidRequestError: it names an unknown processor, or a grammar that cannot be compiled.
    """

    def __init__(
        self, history: SamplingHistory, vocab_size: int, processors: LogitsProcessors, grammars: Grammars
    ) -> None:
        rules, params = history.rules, history.rules.params
        self.history = history
        """The history that it was advanced to last."""
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
        """None without penalties; includes the prompt where the repetition penalty does."""
        if params.has_penalties:
            self.counts = TokenCounts(history.prompt_token_ids if params.repetition_penalty != 1.0 else ())
        self._thinking = Thinking(rules.thinking) if rules.thinking else None
        self.grammar: Grammar | None = None
        """The grammar of its output, which other states may follow too."""
        self._grammar: GrammarProgress | None = None
        self.grammar_mask: TokenMask | None = None
        """The tokens that the grammar alone allows at the place of the last `exclusions`; None: all."""
        if params.structured_outputs is not None:
            grammar_params = params.structured_outputs
            refuse = partial(grammars.refuse, grammar_params)
            self.grammar = grammars.get(grammar_params)
            self._grammar = GrammarProgress(self.grammar.new_state(), self._thinking, grammar_params, refuse)

    def fork(self) -> SamplingState:
        """Return a state after the same tokens that goes on by itself, beside this one."""
        forked = copy(self)
        if self.counts is not None:
            forked.counts = self.counts.fork()
        forked._thinking = copy(self._thinking)
        if self._grammar is not None:
            forked._grammar = self._grammar.fork(forked._thinking)
        return forked

    def precedes(self, history: SamplingHistory) -> bool:
        """Return True if it may be advanced to `history`: the same rules, and a continued output."""
        taken, output = self.history, history.output_token_ids
        if taken.rules is not history.rules or self._num_taken > len(output):
            return False
        return not self._num_taken or output[self._num_taken - 1] == taken.output_token_ids[-1]

    def advance(self, history: SamplingHistory) -> None:
        """Take the tokens that `history` has beyond those taken.

        Raises:
            ValueError: a token does not fit the grammar.
        """
        new = history.output_token_ids[self._num_taken :]
        if self.counts is not None:
            self.counts.add(new)
        for token_id in new if self._thinking or self._grammar else ():
            is_taken = self._grammar is not None and self._grammar.takes(token_id)
            if self._thinking is not None and not is_taken:
                self._thinking.advance(token_id)
        self._num_taken = len(history.output_token_ids)
        self.history = history

    @property
    def rules(self) -> SamplingRules:
        return self.history.rules

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt and the output that it holds."""
        return len(self.history.prompt_token_ids) + len(self.history.output_token_ids)

    def exclusions(self) -> tuple[TokenMask | None, list[int]]:
        """Return a mask `[ceil(vocab_size / 32)]` of allowed tokens, and a list of excluded ones.

        None stands for all tokens. At least one is allowed: a complete grammar ends where other rules leave
        no token that continues it, unless `min_tokens` asks for more.

        Raises:
            InvalidRequestError: no token is left where the output may not end; it names the fields at fault.
        """
        words = self._bad_words.completions(self.history.output_token_ids)
        is_short = self._num_taken < self.rules.params.min_tokens
        held_off = self._grammar.held_off if self._grammar is not None else ()
        blocked = [*words, *(self._ending if is_short else ()), *held_off]
        grammar_mask = self._grammar.mask(self._num_words) if self._grammar is not None else None
        self.grammar_mask = grammar_mask
        if grammar_mask is None and self._allowed is None and len(blocked) < self._vocab_size:
            return None, blocked
        if self._grammar is not None and self._grammar.is_over:
            self.grammar_mask = self._grammar.end_mask
            return self._grammar.end_mask.copy(), []
        mask = (
            _mask_of(range(self._vocab_size), self._num_words)
            if grammar_mask is None
            else grammar_mask.copy()
        )
        if blocked:
            mask &= ~_mask_of(blocked, self._num_words)
        within = mask if self._allowed is None else mask & self._allowed
        if not within.any() and self._grammar is not None and grammar_mask is not None:
            within = mask & self._grammar.end_mask
        if not within.any() and self.forced_token_id is None:
            is_bound = grammar_mask is not None or bool(held_off)
            fields = self._fields(words, is_short=is_short, is_bound=is_bound)
            raise nothing_left(self.rules.params, fields, self._num_taken)
        return within, []

    def _fields(self, words: Sequence[int], *, is_short: bool, is_bound: bool) -> list[str]:
        """Name the fields that exclude tokens at this place; `is_bound`: the grammar does."""
        params = self.rules.params
        return [
            *(("allowed_token_ids",) if self._allowed is not None else ()),
            *(("bad_words",) if words else ()),
            *(("min_tokens",) if is_short and self._ending else ()),
            *(
                (f"structured_outputs.{params.structured_outputs.kind}",)
                if params.structured_outputs is not None and is_bound
                else ()
            ),
        ]

    @property
    def forced_token_id(self) -> int | None:
        """The only token that may be sampled; None without one."""
        return self._thinking.forced_token_id if self._thinking is not None else None


class SamplingStates:
    """The states of the sequences that sampled last; the least recent ones are dropped."""

    def __init__(
        self,
        processors: LogitsProcessors | None = None,
        grammars: Grammars | None = None,
        max_states: int = MAX_STATES,
        max_tokens: int = MAX_TOKENS,
        max_grammar_bytes: int = MAX_GRAMMAR_BYTES,
    ) -> None:
        self._processors = processors or LogitsProcessors({})
        self._grammars = grammars or NoGrammars()
        self._max_states = max_states
        self._max_tokens = max_tokens
        self._max_grammar_bytes = max_grammar_bytes
        self._num_tokens = 0
        self._grammar_bytes = 0
        self._grammar_uses: Counter[Grammar] = Counter()
        """The grammars that states follow, and how many do."""
        self._states: OrderedDict[SeqId, SamplingState] = OrderedDict()
        self._drafted: SamplingState | None = None
        """The state of the last row that followed a draft, in this step."""

    def __len__(self) -> int:
        return len(self._states)

    def take(self, history: SamplingHistory, vocab_size: int) -> SamplingState:
        """Return the state of a sequence after all of `history`; it stays valid until the next call for it.

        One after drafts goes on from that without them, which was taken before, and is not kept.

        Raises:
            Exception: its rules, its grammar or a token of its output fail; nothing is kept.
        """
        if history.num_drafts:
            return self._take_drafted(history)
        state = self._states.pop(history.seq_id, None)
        if state is not None:
            self._discount(state)
        if state is None or not state.precedes(history):
            state = SamplingState(history, vocab_size, self._processors, self._grammars)
        state.advance(history)
        self._states[history.seq_id] = state
        self._count(state)
        return state

    def _take_drafted(self, history: SamplingHistory) -> SamplingState:
        """Return the state after `history`, which ends in drafts, and remember it for the next of them."""
        base = self._drafted
        if base is None or base.history.seq_id != history.seq_id or not base.precedes(history):
            base = self._states[history.seq_id]
        state = base.fork()
        state.advance(history)
        self._drafted = state
        return state

    def clear(self) -> None:
        """Drop all states."""
        self._states.clear()
        self._grammar_uses.clear()
        self._num_tokens = self._grammar_bytes = 0

    def trim(self, num_rows: int) -> None:
        """Drop states beyond the limits after a step of `num_rows` rows, except for those of the step."""
        self._drafted = None
        while len(self._states) > num_rows and self._has_too_much:
            _, state = self._states.popitem(last=False)
            self._discount(state)

    @property
    def _has_too_much(self) -> bool:
        return (
            len(self._states) > self._max_states
            or self._num_tokens > self._max_tokens
            or self._grammar_bytes > self._max_grammar_bytes
        )

    def _count(self, state: SamplingState) -> None:
        self._num_tokens += state.num_tokens
        if (grammar := state.grammar) is not None:
            self._grammar_uses[grammar] += 1
            if self._grammar_uses[grammar] == 1:
                self._grammar_bytes += grammar.num_bytes

    def _discount(self, state: SamplingState) -> None:
        self._num_tokens -= state.num_tokens
        if (grammar := state.grammar) is not None:
            self._grammar_uses[grammar] -= 1
            if not self._grammar_uses[grammar]:
                del self._grammar_uses[grammar]
                self._grammar_bytes -= grammar.num_bytes


def _mask_of(token_ids: Sequence[int], num_words: int) -> NDArray[np.int32]:
    bits = np.zeros(32 * num_words, dtype=np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)
