"""Grammars compiled by llguidance.

Imported when the first grammar is compiled that needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Self

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from baton_core.errors import InvalidRequestError
from baton_core.requests.guidance_source import guidance_source, plain_reason
from baton_core.requests.schema_features import unkept_by_guidance
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_engine.structured.interface import Backend, EndTokens, Grammar, GrammarState, TokenMask, refusal
from baton_engine.structured.vocabulary import Vocabulary


class GuidanceBackend(Backend):
    """Compiles what llguidance knows in full; it refuses by name what it does not know."""

    def __init__(self, vocabulary: Vocabulary, end: EndTokens) -> None:
        self._vocabulary = vocabulary
        self._end = end
        self._limits = LLParserLimits(verbose_errors=False)

    def compile(self, params: StructuredOutputsParams) -> GuidanceGrammar:
        """See `Backend`."""
        if (unkept := unkept_by_guidance(params)) is not None:
            raise refusal(params, f"what llguidance keeps to, which {unkept} is not")
        has_marks = params.structural_tag is not None
        tokenizer = self._tokenizer_with_marks if has_marks else self._tokenizer
        try:
            matcher = LLMatcher(tokenizer, guidance_source(params), log_level=0, limits=self._limits)
            reason = matcher.get_error()
        except InvalidRequestError:
            raise
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            reason = str(error)
        if not reason:
            # Only the first mask shows whether a pattern is too large.
            _fill(matcher, np.zeros_like(self._end.mask))
            reason = matcher.get_error()
        if reason:
            raise refusal(params, f"what llguidance can compile ({plain_reason(reason)})")
        return GuidanceGrammar(matcher, self._end)

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        return self._make_tokenizer(self._vocabulary.texts)

    @cached_property
    def _tokenizer_with_marks(self) -> LLTokenizer:
        """For structural tags, in which special tokens may be the marks that begin and end a part."""
        return self._make_tokenizer(self._vocabulary.texts_with_marks(self._end.token_ids))

    def _make_tokenizer(self, texts: Sequence[bytes]) -> LLTokenizer:
        end_token_ids = sorted(self._end.token_ids)
        words = _Words(texts, self._vocabulary, end_token_ids[0])
        return LLTokenizer(words, n_vocab=len(texts), eos_token=end_token_ids)


class GuidanceGrammar(Grammar):
    def __init__(self, matcher: LLMatcher, end: EndTokens) -> None:
        self._matcher = matcher
        self._end = end

    def new_state(self) -> GuidanceState:
        return GuidanceState(self._matcher.deep_copy(), self._end)


class GuidanceState(GrammarState):
    def __init__(self, matcher: LLMatcher, end: EndTokens) -> None:
        super().__init__(end)
        self._matcher = matcher

    def fork(self) -> Self:
        """See `GrammarState`."""
        forked = super().fork()
        forked._matcher = self._matcher.deep_copy()
        return forked

    def _advance(self, token_id: int) -> bool:
        return bool(self._matcher.try_consume_tokens([token_id]))

    def _fill(self, row: TokenMask) -> None:
        _fill(self._matcher, row)
        if self._matcher.is_error():  # it has met a limit of its library's, and allows the end tokens
            row.fill(0)


class _Words:
    """The vocabulary as `LLTokenizer` asks for it."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, texts: Sequence[bytes], vocabulary: Vocabulary, end_token_id: int) -> None:
        self.tokens = texts
        self.eos_token_id = end_token_id
        self.special_token_ids = [token_id for token_id in vocabulary.marks if not texts[token_id]]
        self._tokenizer = vocabulary.tokenizer

    def __call__(self, text: str | bytes) -> list[int]:
        text = text if isinstance(text, str) else text.decode(errors="replace")
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _fill(matcher: LLMatcher, row: TokenMask) -> None:
    """Write which tokens fit next. The library gets an address alone, so `row` is held here until it ends."""
    matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
