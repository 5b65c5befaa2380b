"""Prompts as callers give them: text, token ids, embeddings or a dictionary, under the names of vLLM's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NotRequired, TypeAlias, TypedDict

if TYPE_CHECKING:
    from torch import Tensor


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


class EmbedsPrompt(TypedDict):
    """A prompt of embeddings, in the place of tokens; only with `enable_prompt_embeds`."""

    prompt_embeds: Tensor
    """`[num_tokens, hidden_size]`, as the model's embedding layer gives them, of float32, float16 or
    bfloat16."""
    prompt: NotRequired[str]
    """Its text, as outputs show it."""
    cache_salt: NotRequired[str]


PromptType: TypeAlias = str | Sequence[int] | TextPrompt | TokensPrompt | EmbedsPrompt
