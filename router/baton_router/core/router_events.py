"""The events and the effects of the router's core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from baton_core.errors import ErrorCode
from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.load_reservation import LoadReservation
from baton_core.requests.phases import Phase
from baton_core.requests.request_context import RequestContext
from baton_core.requests.spending import Spending
from baton_core.sessions.router_messages import (
    PromptLogprobs,
    RequestCommand,
    RequestSpec,
    SequenceOutput,
    ToRouter,
)
from baton_core.sessions.worker_info import Role, WorkerInfo, WorkerLoad
from baton_core.worker.step_plan import PooledValues
from baton_router.core.worker_processes import WorkerProcess

# --- events ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """A client's request, validated, with a seed. From here on it gets exactly one terminal effect."""

    spec: RequestSpec
    timeout_s: float
    context: RequestContext = field(default_factory=RequestContext)
    phases: tuple[Phase, ...] = ()
    """Phases at its router before the submission, on the router's clock."""
    examined: Sequence[RequestSpec] | None = None
    """Requests that must fit into the tenant's rate limits together. Default: this one alone.

    The first request of a call comes with all of the call, the others with none.
    """
    call: str = ""
    """Name that a client's call and its resumptions share; empty where it cannot be resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientGone:
    """The client cancelled or disconnected, or was told already that its router cannot go on."""

    request_id: str
    code: ErrorCode = ErrorCode.CANCELLED
    message: str = "the client cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopMatched:
    """The text of a sequence matched a stop string; its later tokens are waste."""

    request_id: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJoined:
    info: WorkerInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLeft:
    """The session with a worker is over; `reason` is for the clients whose requests it had."""

    worker_id: str
    reason: str


class FromWorker(msgspec.Struct, frozen=True, kw_only=True):
    worker_id: str
    message: ToRouter


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReported:
    worker_id: str
    load: WorkerLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixUpdate:
    """A worker's prefix cache update from outside its session, in that epoch."""

    worker_id: str
    epoch: int
    delta: CacheDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLoad:
    """The load that another router has reserved at workers; empty when that router is gone."""

    router_id: str
    reservations: tuple[LoadReservation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSpending:
    """The spending of tenants at another process of this router."""

    spending: tuple[Spending, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUpdate:
    """The launcher told of a worker's process."""

    process: WorkerProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldDispatch:
    """An operator has requests wait that have not begun, or has them dispatched again."""

    why: str
    """The reason; empty: they are dispatched again."""


RouterEvent = (
    Submit
    | ClientGone
    | StopMatched
    | WorkerJoined
    | WorkerLeft
    | FromWorker
    | WorkerReported
    | PrefixUpdate
    | PeerLoad
    | PeerSpending
    | ProcessUpdate
    | HoldDispatch
)

# --- effects ---


class SendToWorker(msgspec.Struct, frozen=True, kw_only=True):
    worker_id: str
    message: RequestCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class SetRole:
    """Have a worker prefer something else from here on; what it has goes on."""

    worker_id: str
    role: Role
    reason: str


class EmitTokens(msgspec.Struct, frozen=True, kw_only=True):
    """New tokens for the client, in order, none after a sequence's last."""

    request_id: str
    """The client's name of the request; the output bears that of its workers."""
    output: SequenceOutput
    num_cached_tokens: int | None = None
    """Prompt tokens that were not computed, with the first tokens of a sequence."""
    weights: str = ""
    """Hash of the weights that they were computed with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmitPromptLogprobs:
    """Log-probabilities of the next prompt tokens, each position once."""

    prompt_logprobs: PromptLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimings:
    """Durations of a request's phases, in seconds; phases that did not occur are 0."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    transfer_s: float = 0.0
    first_token_s: float = 0.0
    total_s: float = 0.0
    per_token_s: float = 0.0
    transferred_bytes: int = 0
    prefill_worker: str = ""
    decode_worker: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishRequest:
    """Terminal: every sequence has ended."""

    request_id: str
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    timings: RequestTimings = field(default_factory=RequestTimings)
    pooled: PooledValues | None = None
    """The result of a request that pools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailRequest:
    """Terminal: the request ended without all its tokens; the message names the cause."""

    request_id: str
    code: ErrorCode
    message: str
    retry_after_s: float | None = None
    """Time until a retry may succeed; None where it is not known."""


RequestEffect = SendToWorker | EmitTokens | EmitPromptLogprobs | FinishRequest | FailRequest
"""For one request."""
RouterEffect = RequestEffect | SetRole
