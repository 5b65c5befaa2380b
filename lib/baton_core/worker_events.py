"""What enters and leaves a worker's core."""

from __future__ import annotations

from dataclasses import dataclass

from baton_core.peer_messages import ToHolder, ToPuller
from baton_core.router_messages import KVSource, ToRouter, ToWorker
from baton_core.step_plan import StepResult

# --- events ---


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSaid:
    router_id: str
    message: ToWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterJoined:
    router_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterLost:
    """The session is over: what that router asked for is cancelled."""

    router_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PullerSaid:
    """A decode worker speaks to this worker as a holder; `peer_id` is where answers go."""

    peer_id: bytes
    message: ToHolder


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderSaid:
    """A prefill worker answers this worker as a puller."""

    message: ToPuller


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    result: StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFailed:
    """The engine could not execute the step in flight."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """Checksums of a `Seal`, in its order."""

    request_id: str
    indices: tuple[int, ...]
    block_ids: tuple[int, ...]
    checksums: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SealFailed:
    """The checksums of a `Seal` cannot be had: its request cannot be handed over."""

    request_id: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PullDone:
    """A pull is terminal: nothing writes its blocks any more."""

    pull_id: int
    failed_block_ids: tuple[int, ...] = ()
    """Local blocks whose content did not arrive or is wrong."""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullAborted:
    """Answer to `AbortPull`. Without a fence, writes may go on until a `PullDone` says otherwise."""

    pull_id: int
    is_fenced: bool


WorkerEvent = (
    RouterSaid
    | RouterJoined
    | RouterLost
    | PullerSaid
    | HolderSaid
    | StepDone
    | StepFailed
    | Sealed
    | SealFailed
    | PullDone
    | PullAborted
)

# --- effects ---


@dataclass(frozen=True, slots=True, kw_only=True)
class SendToRouter:
    router_id: str
    message: ToRouter


@dataclass(frozen=True, slots=True, kw_only=True)
class SendToPuller:
    peer_id: bytes
    message: ToPuller


@dataclass(frozen=True, slots=True, kw_only=True)
class SendToHolder:
    source: KVSource
    message: ToHolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """Compute the checksums of blocks that no one will write again."""

    request_id: str
    indices: tuple[int, ...]
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPull:
    remote_block_id: int
    local_block_id: int
    checksum: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """Copy blocks from a holder's pool; ends with one `PullDone`."""

    pull_id: int
    source: KVSource
    blocks: tuple[BlockPull, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortPull:
    pull_id: int


WorkerEffect = SendToRouter | SendToPuller | SendToHolder | Seal | Pull | AbortPull
