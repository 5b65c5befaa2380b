"""What generation returns, in the shape of vLLM's documented outputs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One generated sequence."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    """`stop` or `length`."""
    stop_reason: str | int | None
    """The stop string or stop token that ended it; None for the model's own end token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """One prompt and its completions."""

    request_id: str
    prompt: str | None
    """The text that was given; None for a prompt of token ids."""
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    num_cached_tokens: int
    """Prompt tokens that were not computed for this request."""
    finished: bool = True
