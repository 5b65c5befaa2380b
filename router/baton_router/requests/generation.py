"""Requests of clients and the events that they get, whichever protocol they speak."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, TypeAlias

import msgspec

from baton_core.requests.logprobs import PositionLogprobs
from baton_core.requests.packed_logprobs import PackedLogprobs
from baton_core.requests.pooling import PoolingTask
from baton_core.requests.request_context import RequestContext
from baton_core.worker.step_plan import PooledValues
from baton_router.core.router_events import RequestTimings
from baton_router.text.prompts import AnyPrompt, TextPair, TokenIds

MAX_JOINED_LOGPROBS: Final = 2**16
"""Log-probabilities of one event of several tokens: each is 10 bytes over gRPC, where clients take 4 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedSequence:
    """The tokens that a client has of a sequence."""

    token_ids: TokenIds
    is_finished: bool = False
    """True if the last of them ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """The part of a broken stream that its client has, not checked yet."""

    token: str
    num_received_tokens: tuple[int, ...] = ()
    """Tokens received of each sequence; empty means none of any."""
    received: tuple[ReceivedSequence, ...] = ()
    """The tokens of each sequence, where the client sends them instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingRequest:
    """A wish to pool a prompt, not checked yet."""

    task: PoolingTask
    dimensions: int | None = None
    use_activation: bool | None = None
    type_one_from: int | None = None
    """Position of the first token of type 1, in a prompt of token ids."""
    truncation_side: str = "right"
    """The side on which `truncate_prompt_tokens` cuts: left or right."""
    is_cut: bool = True
    """False: a prompt of more than `truncate_prompt_tokens` is refused instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One prompt and its parameters, not checked yet."""

    prompt: AnyPrompt | TextPair
    """A pair only where something is pooled of it."""
    prompt_field: str = "prompt"
    """The client's name for the prompt, which errors use."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `SamplingParams` that the client gave; the others take the model's defaults."""
    model: str = ""
    request_id: str = ""
    cache_salt: str = ""
    priority: int = 0
    add_special_tokens: bool | None = None
    """Adds the tokenizer's special tokens; None: to a text, not to a conversation."""
    truncate_prompt_tokens: int | None = None
    """Keep only the last so many tokens; -1 is as many as the context holds."""
    context: RequestContext = field(default_factory=RequestContext)
    is_streamed: bool = False
    """True if events go out as they come."""
    resumption: Resumption | None = None
    """None: the request is new."""
    pooling: PoolingRequest | None = None
    """None: tokens are generated."""


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """New tokens of one sequence."""

    index: int
    text: str
    """May be empty: half a character, or what could become a stop string, is held back."""
    token_ids: TokenIds
    logprobs: Collection[PositionLogprobs] = ()
    """One for each token, if they are wanted."""
    finish_reason: str | None = None
    """`stop`, `length` or `repetition`, with the sequence's last delta."""
    stop_reason: str | int | None = None
    """The stop string or token that ended it, or `repetition_detected`; None: the tokenizer's end token."""
    is_received: bool = False
    """True if the client has it from an earlier call: it is parsed but not sent again."""
    num_cached_tokens: int | None = None
    """Prompt tokens that were not computed, with the first tokens of a sequence."""

    @property
    def num_logprobs(self) -> int:
        """Log-probabilities of all its tokens together."""
        return sum([len(one.token_ids) for one in self.logprobs])

    def follows(self, other: Delta) -> bool:
        """Return whether it can continue the other in one event."""
        return self.index == other.index and self.is_received == other.is_received


def join(deltas: Sequence[Delta]) -> Delta:
    """Return one delta with the tokens of several of one sequence, in order; only the last may end it."""
    first, last = deltas[0], deltas[-1]
    logprobs = list(chain.from_iterable([one.logprobs for one in deltas]))
    return Delta(
        index=last.index,
        text="".join([one.text for one in deltas]),
        token_ids=tuple(chain.from_iterable([one.token_ids for one in deltas])),
        logprobs=PackedLogprobs(logprobs) if logprobs else (),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        is_received=last.is_received,
        num_cached_tokens=first.num_cached_tokens,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptDelta:
    """Log-probabilities of the next tokens of the prompt; all come before the first `Delta`."""

    start: int
    """Position of the first of them: 1 or more."""
    logprobs: Collection[PositionLogprobs]
    is_received: bool = False
    """The same as in `Delta`."""


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
    pooled: PooledValues | None = None
    """The result of a request that pools."""


GenerationEvent: TypeAlias = Delta | PromptDelta | Finished


@dataclass(slots=True)
class _Held:
    """The tokens of a sequence that has begun."""

    deltas: list[Delta] = field(default_factory=list)
    num_tokens: int = 0
    num_logprobs: int = 0

    def add(self, delta: Delta) -> None:
        self.deltas.append(delta)
        self.num_tokens += len(delta.token_ids)
        self.num_logprobs += delta.num_logprobs


class HeldDeltas:
    """The newest tokens of each sequence of a request, until there are `interval` of them.

    Neither the first tokens of a sequence are held nor the last, nor tokens whose log-probabilities reach
    `MAX_JOINED_LOGPROBS`.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._held: dict[int, _Held] = {}

    def add(self, delta: Delta) -> Delta | None:
        """Take new tokens; return those that are due, or None."""
        if self._interval == 1:
            return delta
        held = self._held.get(delta.index)
        if held is None or delta.is_received:
            self._held[delta.index] = _Held()
            return delta
        held.add(delta)
        is_small = held.num_tokens < self._interval and held.num_logprobs < MAX_JOINED_LOGPROBS
        if is_small and delta.finish_reason is None:
            return None
        self._held[delta.index] = _Held()
        return join(held.deltas)

    def release(self) -> list[Delta]:
        """Return all that is held, now that nothing follows it."""
        deltas = [join(held.deltas) for held in self._held.values() if held.deltas]
        self._held.clear()
        return deltas
