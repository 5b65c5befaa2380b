"""What a worker says of itself when it registers, and what it reports while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Final

from baton_core.blocks.paging import Paging
from baton_core.errors import IncompatibleWorkerError

PROTOCOL_VERSION: Final = 1


class Role(StrEnum):
    """What a worker prefers to do; a mixed worker does both."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"

    @property
    def can_prefill(self) -> bool:
        return self is not Role.DECODE

    @property
    def can_decode(self) -> bool:
        return self is not Role.PREFILL


_HINTS: Final = {
    "model": "; the same files, and the same --quantization",
    "numerics": "; '' is a worker without --batch-invariant",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """What two workers must agree on before blocks may move between them."""

    model: str
    """Hash of the configuration, of the weights' headers, sizes and samples, of how keys are rotated and of
    how layers are quantized."""
    dtype: str
    block_size: int
    kv_layout: str
    """What a block holds, by `KVSpec.layout`."""
    transport: str
    """Names of the transports that the worker speaks, joined by `+`; one in common is enough."""
    kv_windows: tuple[int | None, ...] = (None,)
    """Window of each KV group in tokens; None sees all."""
    protocol_version: int = PROTOCOL_VERSION
    numerics: str = ""
    """What the bits of a batch-invariant worker's results depend on; empty outside that mode."""

    @property
    def paging(self) -> Paging:
        """How tokens lie in blocks, at every worker of this identity."""
        return Paging(block_size=self.block_size, windows=self.kv_windows)

    def require_compatible(self, other: ModelIdentity) -> None:
        """Refuse `other`, a worker that wants to join a worker of this identity.

        Raises:
            IncompatibleWorkerError: names the first field that differs, its value, and what is allowed.
        """
        for one in fields(self):
            mine, theirs = getattr(self, one.name), getattr(other, one.name)
            share_one = one.name == "transport" and {*mine.split("+")} & {*theirs.split("+")}
            if mine != theirs and not share_one:
                hint = _HINTS.get(one.name, "")
                raise IncompatibleWorkerError(
                    f"{one.name} is {theirs!r}; allowed: {mine!r}, as in the workers already registered{hint}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker as it registers at a router. A restarted worker has a new epoch."""

    worker_id: str
    epoch: int
    role: Role
    identity: ModelIdentity
    max_model_len: int
    vocab_size: int
    num_blocks: int
    max_num_seqs: int
    peer_address: str
    """Where the peer channel listens, `tcp://host:port` or `ipc://...`."""
    kv_description: bytes
    """The connector's own description of its pool, opaque to the router."""
    block_bytes: int = 1
    """Of one block's KV, all layers."""
    metrics_address: str = ""
    """Where it serves its metrics (`host:port`); empty: nowhere, so its routers tell of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRates:
    """Speeds of a worker, as it has learned them from its own steps and pulls; 0 is not known yet.

    Where a count has grown since the last report, the rate was learned anew.
    """

    prefill_tokens_per_s: float = 0.0
    """Prompt tokens that steps compute."""
    decode_step_s: float = 0.0
    """A step without prompt tokens."""
    pull_bytes_per_s: float = 0.0
    """Of copies from other workers' pools to this one's."""
    num_prefill_steps: int = 0
    """Steps with prompt tokens that its rate was learned from."""
    num_decode_steps: int = 0
    """Steps without prompt tokens that their time was learned from."""
    num_pulls: int = 0
    """Copies that their rate was learned from."""

    @property
    def known(self) -> tuple[bool, bool, bool]:
        """Three flags, each true for a known rate: of prefill, of decode steps, of copies."""
        return self.prefill_tokens_per_s > 0, self.decode_step_s > 0, self.pull_bytes_per_s > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """A worker's state, sent with every heartbeat."""

    num_running: int = 0
    num_waiting: int = 0
    num_deferred: int = 0
    """Requests beside those that wait: their blocks are on their way, or their form is being compiled."""
    num_queued_tokens: int = 0
    """Prompt tokens that are not computed yet."""
    num_available_blocks: int = 0
    """Free and cached blocks together: what a new request could take."""
    step_age_s: float = 0.0
    """How long the step in flight has been running; 0 when none is."""
    is_asleep: bool = False
    """Whether it refuses requests because an operator made it sleep."""
    role: Role | None = None
    """What it prefers to do now; None is what it registered with."""
    is_role_fixed: bool = False
    """Whether an operator gave it that role: routers do not change it by themselves."""
    is_draining: bool = False
    """Whether it refuses requests because it is to be emptied; those it has go on."""
    fault: str = ""
    """Why it refuses requests until it is started again; empty while it has found nothing wrong."""
    rates: WorkerRates = field(default_factory=WorkerRates)

    @property
    def is_taking(self) -> bool:
        """Whether it takes requests."""
        return not (self.is_asleep or self.is_draining or self.fault)
