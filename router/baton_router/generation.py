"""What a client asks for and what it gets, whichever protocol it speaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from baton_core.requests.logprobs import PositionLogprobs
from baton_core.requests.request_context import RequestContext
from baton_core.routing.router_events import RequestTimings
from baton_router.chat_template import Conversation

TokenIds: TypeAlias = tuple[int, ...]
Prompt: TypeAlias = str | TokenIds | Conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedSequence:
    """All tokens that a client has of a sequence."""

    token_ids: TokenIds
    is_finished: bool = False
    """Whether the last of them ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """What the client of a broken stream has of it, not checked yet."""

    token: str
    num_received_tokens: tuple[int, ...] = ()
    """Of each sequence; empty is none of any."""
    received: tuple[ReceivedSequence, ...] = ()
    """The tokens themselves, of each sequence, where the client tells them instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One prompt and what is to become of it, not checked yet."""

    prompt: Prompt
    prompt_field: str = "prompt"
    """What the client calls it: errors name it so."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `SamplingParams` that the client gave; the others take the model's defaults."""
    model: str = ""
    request_id: str = ""
    cache_salt: str = ""
    priority: int = 0
    add_special_tokens: bool | None = None
    """Whether the tokenizer adds its own around a text; None: around a text, not around a conversation."""
    truncate_prompt_tokens: int | None = None
    """Keep only the last so many tokens; -1 is as many as the context holds."""
    context: RequestContext = field(default_factory=RequestContext)
    resumption: Resumption | None = None
    """None: the request is new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """New tokens of one sequence."""

    index: int
    text: str
    """May be empty: half a character, or what could become a stop string, is held back."""
    token_ids: TokenIds
    logprobs: tuple[PositionLogprobs, ...] = ()
    """One for each token, if they are wanted."""
    finish_reason: str | None = None
    """`stop`, `length` or `repetition`, with the sequence's last delta."""
    stop_reason: str | int | None = None
    """The stop string or stop token that ended it; None for the model's own end token."""
    is_received: bool = False
    """Whether the client has it from an earlier call: it is read along, not sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptDelta:
    """Log-probabilities of the next tokens of the prompt; all come before the first `Delta`."""

    start: int
    """Position of the first of them: 1 or more."""
    logprobs: tuple[PositionLogprobs, ...]
    is_received: bool = False
    """As in `Delta`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The end of a request, after the last delta of each sequence."""

    request_id: str
    num_prompt_tokens: int
    num_output_tokens: int
    """Tokens of all sequences that were shown."""
    num_cached_tokens: int
    seed: int
    """In force, given or chosen."""
    timings: RequestTimings


GenerationEvent: TypeAlias = Delta | PromptDelta | Finished
