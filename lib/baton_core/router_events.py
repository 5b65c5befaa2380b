"""What enters and leaves the router's core."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton_core.errors import ErrorCode
from baton_core.router_messages import RequestSpec, SequenceOutput, ToRouter, ToWorker
from baton_core.worker_info import WorkerInfo, WorkerLoad

# --- events ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """A client's request, validated, with a seed. From here on it gets exactly one terminal effect."""

    spec: RequestSpec
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientGone:
    """The client cancelled or disconnected."""

    request_id: str


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


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSaid:
    worker_id: str
    message: ToRouter


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReported:
    worker_id: str
    load: WorkerLoad


RouterEvent = Submit | ClientGone | StopMatched | WorkerJoined | WorkerLeft | WorkerSaid | WorkerReported

# --- effects ---


@dataclass(frozen=True, slots=True, kw_only=True)
class SendToWorker:
    worker_id: str
    message: ToWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class EmitTokens:
    """New tokens for the client, in order, none after a sequence's last."""

    output: SequenceOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimings:
    """Where a request's time went, in seconds; phases that did not occur are 0."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class FailRequest:
    """Terminal: the request ended without all its tokens; the message names the cause."""

    request_id: str
    code: ErrorCode
    message: str


RouterEffect = SendToWorker | EmitTokens | FinishRequest | FailRequest
