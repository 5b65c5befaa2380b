"""One request of a load, before it is known when it is sent and to whom."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """What is asked for."""

    prompt: str | tuple[int, ...]
    """Text or token ids."""
    num_prompt_tokens: int
    """By the tokenizer at hand; 0 where there is none for this text."""
    num_tokens: int
    """Most to generate."""
    session_id: str = ""
    """The conversation that it belongs to, where the server is to know."""
