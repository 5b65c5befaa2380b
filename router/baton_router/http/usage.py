"""Token usage of a call."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from baton_router.requests.generation import Finished


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    """Details of the prompt tokens."""

    cached_tokens: int
    """Prompt tokens found in a prefix cache."""


class CompletionTokensDetails(msgspec.Struct, kw_only=True):
    """Details of the output tokens."""

    reasoning_tokens: int
    """Tokens of reasoning."""


class Usage(msgspec.Struct, kw_only=True):
    """Tokens of a call."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | msgspec.UnsetType = msgspec.UNSET
    completion_tokens_details: CompletionTokensDetails | msgspec.UnsetType = msgspec.UNSET


def usage_so_far(num_prompt_tokens: int, num_output_tokens: int) -> Usage:
    """Return the usage of a call that still runs."""
    return Usage(
        prompt_tokens=num_prompt_tokens,
        completion_tokens=num_output_tokens,
        total_tokens=num_prompt_tokens + num_output_tokens,
    )


def usage_of(ends: Iterable[Finished | None]) -> Usage:
    """Return the usage of a call whose prompts have ended."""
    finished = [end for end in ends if end is not None]
    usage = usage_so_far(
        sum(end.num_prompt_tokens for end in finished), sum(end.num_output_tokens for end in finished)
    )
    num_cached_tokens = sum(end.num_cached_tokens for end in finished)
    usage.prompt_tokens_details = PromptTokensDetails(cached_tokens=num_cached_tokens)
    return usage
