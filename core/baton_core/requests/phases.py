"""Phases of a request's time, as each process that works on it reports them.

Times are on the clock of the process that reports; their receiver shifts them onto its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PhaseName(StrEnum):
    """Doubles as span name and as metric label."""

    RECEIVE = "receive"
    """Router: from the call to its fields being read."""
    TOKENIZE = "tokenize"
    """Router: the prompt becomes token ids."""
    ADMIT = "admit"
    """Router: accepted, until a worker was chosen."""
    PLACE = "place"
    """Router: one decision."""
    QUEUE = "queue"
    """Worker: taken, until its first token was scheduled."""
    PREFILL_CHUNK = "prefill_chunk"
    """Worker: a step that computed tokens of the prompt."""
    TRANSFER = "transfer"
    """Decode worker: one copy of blocks, from its start to its verification."""
    DECODE_QUEUE = "decode_queue"
    """Decode worker: from its start command to its first step of decoding."""
    FIRST_TOKEN = "first_token"  # noqa: S105
    """Router: the moment at which the client was sent it."""
    DECODE = "decode"
    """Worker: from its first step of decoding to its last."""
    FINISH = "finish"
    """Router: the moment of the terminal message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A moment has equal ends."""

    name: PhaseName
    start_s: float
    end_s: float
    num_tokens: int = 0
    """Prompt tokens of a chunk, output tokens of a decode."""
    num_bytes: int = 0
    """Bytes of a transfer."""
    peer: str = ""
    """The worker at the other end of a transfer."""
    num_drafted: int = 0
    """Tokens that a decode's steps verified beside their own."""
    num_accepted: int = 0
    """Drafted tokens that were right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSources:
    """Sources of the prompt tokens that a worker has for a request, each counted once."""

    num_computed: int = 0
    num_local_cache: int = 0
    """In its own prefix cache."""
    num_remote: int = 0
    """Pulled from another worker."""
    num_recomputed: int = 0
    """Computed, because they were lost on their way or taken by preemption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseReport:
    """Worker to router: all that a worker did for one attempt of a request, once it is done with it."""

    request_id: str
    """Name of the attempt."""
    phases: tuple[Phase, ...]
    sources: TokenSources
    num_left_out: int = 0
    """Phases beyond the maximum that a worker remembers for a request."""
    sent_s: float
    """Time of sending, on the worker's clock."""
    traceparent: str = ""
    """Trace context of the request; empty without tracing."""
