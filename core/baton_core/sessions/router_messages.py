"""The messages between a router and a worker over a session.

Frozen values; `baton_service.wire` maps each to its protobuf message. Every command but an
operator's names a request, and where it matters its sequences; token ids travel, never text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from baton_core.errors import ErrorCode
from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.prompt_embeds import PromptEmbeds
from baton_core.requests.adapter import Adapter
from baton_core.requests.finish import FinishReason
from baton_core.requests.logprobs import PositionLogprobs
from baton_core.requests.phases import PhaseReport
from baton_core.requests.pooling import PoolingSpec
from baton_core.requests.sampling_params import SamplingParams
from baton_core.requests.sampling_rules import ThinkingBudget
from baton_core.sessions.control_messages import Control, ControlResult


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSoFar:
    """The whole output of a sequence that was generated elsewhere; at least one token."""

    index: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpec:
    """A request as workers see it: the prompt in tokens, and parameters with a seed."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    cache_salt: str = ""
    """Tenants with different salts share no cached block."""
    priority: int = 0
    """Lower values are scheduled first, under the scheduling policy `priority`."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """The bad words of the parameters, in tokens."""
    thinking: ThinkingBudget | None = None
    """The thinking budget of the parameters, in tokens."""
    traceparent: str = ""
    """W3C trace context under which workers report; empty where nobody traces it.

    Until a router has taken the request it is that of the caller.
    """
    resumed: tuple[OutputSoFar, ...] = ()
    """The sequences that go on, where the request comes from another worker; the others are over."""
    tenant: str = ""
    """Whom it is counted for: tenants take turns where grammars are compiled; empty without keys."""
    weights: str = ""
    """Hash of the weights that all of its tokens come from; empty where any will do."""
    pooling: PoolingSpec | None = None
    """The task to pool the prompt for; None: tokens are generated."""
    prompt_embeds: tuple[PromptEmbeds, ...] = ()
    """Embeddings in the place of prompt tokens, in order; the tokens there are placeholders."""
    adapter: Adapter | None = None
    """The LoRA adapter that changes the model for it; None is the model as it is."""

    @property
    def given_token_ids(self) -> tuple[int, ...]:
        """The prompt, and what the first of the sequences that go on has generated."""
        return self.prompt_token_ids + (self.resumed[0].token_ids if self.resumed else ())

    @property
    def adapter_digest(self) -> str:
        """The digest of its adapter; empty without one."""
        return "" if self.adapter is None else self.adapter.digest

    @property
    def num_sequences(self) -> int:
        """Number of sequences that a worker has to run."""
        return len(self.resumed) or self.params.n

    def num_needed_tokens(self, headroom_tokens: int) -> int:
        """Return the tokens of the longest sequence, and of output the headroom, or all if that is less."""
        num_prompt_tokens, max_tokens = len(self.prompt_token_ids), self.params.max_tokens
        if self.pooling is not None:
            return num_prompt_tokens
        num_tokens = num_prompt_tokens + max((len(one.token_ids) for one in self.resumed), default=0)
        most = num_tokens + 1 if max_tokens is None else num_prompt_tokens + max_tokens
        return min(most, num_tokens + headroom_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVSource:
    """The prefill worker that a decode worker pulls from."""

    worker_id: str
    epoch: int
    peer_address: str
    kv_description: bytes


# --- router to worker ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """Prefill and decode here."""

    spec: RequestSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Compute the prompt, draw the first token of each sequence, hold the blocks for a consumer."""

    spec: RequestSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Take blocks for the prompt and pull from `source` those that are not here."""

    spec: RequestSpec
    source: KVSource


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokenOf:
    index: int
    token_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Decode the sequences named (those that their first token did not end)."""

    request_id: str
    first_tokens: tuple[FirstTokenOf, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Stop the sequences named, or the whole request; nothing more is sent for them."""

    request_id: str
    indices: tuple[int, ...] = ()
    """Empty means all."""


RequestCommand = Generate | Prefill | Reserve | Start | Cancel
"""The commands about one request."""
ToWorker = RequestCommand | Control


# --- worker to router ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """The decode worker holds blocks for the request."""

    request_id: str
    num_cached_tokens: int
    """Prompt tokens whose blocks were here already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The worker did not take the request; it keeps nothing of it."""

    request_id: str
    code: ErrorCode
    message: str


class SequenceOutput(msgspec.Struct, frozen=True, kw_only=True):
    request_id: str
    index: int
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    """The token that ended it: one of `stop_token_ids`, or an end token of the model."""
    logprobs: tuple[PositionLogprobs, ...] = ()
    """One entry for each token, where they are asked for."""

    def unfinished(self) -> SequenceOutput:
        """Return the same output of a sequence that goes on."""
        return msgspec.structs.replace(self, finish_reason=None)


class FirstToken(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt is computed: one token per sequence."""

    request_id: str
    outputs: tuple[SequenceOutput, ...]
    num_cached_tokens: int
    queue_s: float
    """From the request's arrival at the worker to its first scheduled token."""
    prefill_s: float
    """From there to the first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLogprobs:
    """Log-probabilities of a chunk of the prompt, as soon as it is computed; before the first token."""

    request_id: str
    start: int
    """Position of the first token that they are of; 1 or more."""
    entries: Sequence[PositionLogprobs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """The result of a request that pools, or a part of it: large ones come in several messages, in order.

    The last part is the worker's last message about the request.
    """

    request_id: str
    shape: tuple[int, ...]
    """Shape of the whole result: the numbers of a prompt, or tokens and numbers of each."""
    values: bytes
    """Little-endian float32, row by row."""
    num_cached_tokens: int
    queue_s: float
    """From the request's arrival at the worker to its first scheduled token."""
    prefill_s: float
    """From there to the result."""

    @property
    def num_bytes(self) -> int:
        """Size of the whole result."""
        return 4 * math.prod(self.shape)

    @property
    def as_first_token(self) -> FirstToken:
        """Return the times of the prompt, as those of one that generates."""
        return FirstToken(
            request_id=self.request_id,
            outputs=(),
            num_cached_tokens=self.num_cached_tokens,
            queue_s=self.queue_s,
            prefill_s=self.prefill_s,
        )


class TokenBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The new tokens of all sequences of one router in one step."""

    outputs: tuple[SequenceOutput, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transferred:
    """All blocks of a request are valid at the decode worker."""

    request_id: str
    num_blocks: int
    num_bytes: int
    transfer_s: float
    """Time in which blocks were copied: the wait until they are computed does not count."""
    num_recomputed_tokens: int = 0
    """Prompt tokens whose blocks did not arrive and are computed here instead."""
    is_cancel_the_cause: bool = False
    """True if that is because another request, which was to bring the blocks, was cancelled. Stays here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The worker gave up a request it had taken; it keeps nothing of it."""

    request_id: str
    code: ErrorCode
    message: str


ToRouter = (
    Reserved
    | Refused
    | PromptLogprobs
    | FirstToken
    | Pooled
    | TokenBatch
    | Transferred
    | Failed
    | CacheDelta
    | ControlResult
    | PhaseReport
)
