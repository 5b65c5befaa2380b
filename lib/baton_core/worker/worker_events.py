"""What enters and leaves a worker's core."""

from __future__ import annotations

from dataclasses import dataclass

from baton_core.blocks.peer_messages import ToHolder, ToPuller
from baton_core.errors import ErrorCode
from baton_core.events.kv_events import KVEvent
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_core.sessions.control_messages import ControlAction, EnginePart
from baton_core.sessions.router_messages import CacheDelta, KVSource, ToRouter, ToWorker
from baton_core.worker.step_plan import StepResult

# --- events ---


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSaid:
    router_id: str
    message: ToWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterJoined:
    router_id: str
    has_locality: bool = False
    """Whether it hears of cached blocks from elsewhere, and wants none over the session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterLost:
    """The session is over: what that router asked for is cancelled."""

    router_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """The worker is told to end: it ends or gives back what it has within that time. Comes once."""

    within_s: float


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
class Prepared:
    """Answer to `Prepare`: drawing can begin, or, with an error, never can."""

    preparation_id: int
    error: str = ""
    code: ErrorCode = ErrorCode.INVALID_REQUEST
    """Of the error."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlDone:
    """Answer to `RunControl`: steps can go on."""

    run_id: int
    result_json: str = "null"
    code: ErrorCode | None = None
    """Of the error, if it could not be done."""
    message: str = ""
    away: frozenset[EnginePart] = frozenset()
    """What the engine lacks now."""


WorkerEvent = (
    Leave
    | RouterSaid
    | RouterJoined
    | RouterLost
    | PullerSaid
    | HolderSaid
    | StepDone
    | StepFailed
    | Sealed
    | SealFailed
    | Prepared
    | PullDone
    | PullAborted
    | ControlDone
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
class Prepare:
    """Compile the form of a request's output; ends with one `Prepared`."""

    preparation_id: int
    structured_outputs: StructuredOutputsParams


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunControl:
    """Have the engine do what an operator asks; ends with one `ControlDone`. No step is in flight."""

    run_id: int
    action: ControlAction
    argument_json: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheChanged:
    """Tell whoever follows this worker's cache elsewhere than over a session."""

    delta: CacheDelta
    events: tuple[KVEvent, ...]
    """The same with the tokens of what was stored; prefixes come before what extends them."""


WorkerEffect = (
    SendToRouter | SendToPuller | SendToHolder | Seal | Prepare | Pull | AbortPull | RunControl | CacheChanged
)
