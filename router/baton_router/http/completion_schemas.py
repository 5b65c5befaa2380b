"""What `/v1/completions` takes and gives."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from baton_router.http.prompt_logprobs import PromptLogprobs
from baton_router.http.sampling_fields import RequestFields
from baton_router.http.usage import Usage


class CompletionRequest(RequestFields, kw_only=True):
    """Complete a text."""

    prompt: str | list[str | int | list[int]]
    """A text, token ids, or a list of either."""
    max_tokens: int | None = 16
    """0 with echo: only the prompt; null: as many as the context holds."""
    logprobs: int | None = None
    """Most likely tokens to tell of at each position."""
    echo: bool | None = None
    """Repeat the prompt before what follows it."""
    suffix: Any = None
    """Refused: nothing can be said about what comes behind."""


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """Of each token of the text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]
    """Where in the text, in characters, each token begins."""


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One sequence, or what is new of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    """The stop string or stop token that ended it."""
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(msgspec.Struct, kw_only=True):
    """A whole answer, or a chunk of a streamed one."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str
    usage: Usage | UnsetType | None = UNSET
    """In chunks, where it is asked for: null but in the last one."""
    resume_token: str | UnsetType = UNSET
    """In the first chunk of each prompt: with it the request goes on elsewhere, should the stream break."""
