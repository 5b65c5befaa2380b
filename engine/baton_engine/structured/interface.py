"""The interface of compiled grammars, whichever library compiles them.

A grammar is shared by all sequences that must follow it; each sequence has a state of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from copy import copy
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from baton_core.errors import InvalidRequestError
from baton_core.requests.structured_outputs import StructuredOutputsParams

TokenMask: TypeAlias = NDArray[np.int32]
"""`[ceil(vocab_size / 32)]`: bit `id % 32` of word `id // 32` is 1 where the token may come next."""


@dataclass(frozen=True, slots=True, eq=False)
class EndTokens:
    """Tokens that end an output. They are no part of any grammar."""

    token_ids: frozenset[int]
    mask: TokenMask
    """Mask of these tokens alone."""

    @classmethod
    def of(cls, token_ids: Collection[int], vocab_size: int) -> EndTokens:
        """Make the end tokens of a model; ids that it has no logit for are left out."""
        known = frozenset(token_id for token_id in token_ids if 0 <= token_id < vocab_size)
        mask = np.zeros((vocab_size + 31) // 32, dtype=np.uint32)
        for token_id in known:
            mask[token_id // 32] |= np.uint32(1 << token_id % 32)
        return cls(known, mask.view(np.int32))


class GrammarState(ABC):
    """One sequence's state in a grammar. Not safe to share between threads."""

    def __init__(self, end: EndTokens) -> None:
        self._end = end
        self.is_terminated = False
        """True once an end token was accepted: the output is over."""

    def accept(self, token_id: int) -> bool:
        """Take the next token; where it does not fit, return False and change nothing."""
        if token_id in self._end.token_ids:
            self.is_terminated = self.is_terminated or self._may_end()
            return self.is_terminated
        return not self.is_terminated and self._advance(token_id)

    def fork(self) -> Self:
        """Return a state after the same tokens that goes on by itself.

        A state that refers to what changes gives its fork a copy of that.
        """
        return copy(self)

    @property
    def end_token_ids(self) -> Collection[int]:
        """The tokens that end the output."""
        return self._end.token_ids

    @property
    def end_mask(self) -> TokenMask:
        """The end tokens alone; not to be changed."""
        return self._end.mask

    def fill_mask(self, row: TokenMask) -> None:
        """Write which tokens fit next; `row` is contiguous.

        The end tokens, where the output is over; none, where no token of the vocabulary continues the
        grammar and it may not end.
        """
        if self.is_terminated:
            row[:] = self._end.mask
        else:
            self._fill(row)

    @property
    def can_begin(self) -> bool:
        """True if any token fits first: an end token, where the output may be empty."""
        row = np.zeros_like(self._end.mask)
        self._fill(row)
        return bool(row.any())

    def _may_end(self) -> bool:
        row = np.zeros_like(self._end.mask)
        self.fill_mask(row)
        return bool((row & self._end.mask).any())

    @abstractmethod
    def _advance(self, token_id: int) -> bool:
        """Take a token that ends nothing; where it does not fit, return False and change nothing."""

    @abstractmethod
    def _fill(self, row: TokenMask) -> None:
        """Write which tokens fit next, the end tokens where the output may end."""


class Grammar(ABC):
    """A compiled grammar. Safe to share between threads."""

    num_bytes = 0
    """Memory that it holds, as far as its library or a trial of it says; constant once it is in use."""

    @abstractmethod
    def new_state(self) -> GrammarState:
        """Return the state of a sequence that has no token yet."""


def refusal(params: StructuredOutputsParams, allowed: str) -> InvalidRequestError:
    """Return the error that says which grammars are allowed instead of one."""
    return InvalidRequestError(f"structured_outputs.{params.kind}", getattr(params, params.kind), allowed)


class Backend(ABC):
    """A library that compiles grammars for one vocabulary. Safe to share between threads."""

    @abstractmethod
    def compile(self, params: StructuredOutputsParams) -> Grammar:
        """Compile a grammar; may take seconds.

        Raises:
            InvalidRequestError: the grammar is wrong, or this library does not support it.
        """
