"""Prompts as callers give them: text, token ids, or a dictionary of either, under the names of vLLM's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired, TypeAlias, TypedDict


class TextPrompt(TypedDict):
    """A prompt of text."""

    prompt: str
    cache_salt: NotRequired[str]
    """Prompts with different salts share no cached block."""


class TokensPrompt(TypedDict):
    """A prompt of token ids."""

    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str]
    """Its text, as outputs show it."""
    token_type_ids: NotRequired[Sequence[int]]
    """Zeros, then ones for the second text of a pair; for cross-encoders."""
    cache_salt: NotRequired[str]


PromptType: TypeAlias = str | Sequence[int] | TextPrompt | TokensPrompt
