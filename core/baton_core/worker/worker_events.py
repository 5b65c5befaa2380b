"""The events and the effects of a worker's core."""

from __future__ import annotations

from dataclasses import dataclass

from baton_core.errors import ErrorCode
from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.kv_events.events import KVEvent
from baton_core.requests.adapter import Adapter
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_core.sessions.control_messages import ControlAction, EnginePart
from baton_core.sessions.peer_messages import ToConsumer, ToProducer
from baton_core.sessions.router_messages import KVSource, ToRouter, ToWorker
from baton_core.worker.step_plan import StepResult

# --- events ---


@dataclass(frozen=True, slots=True, kw_only=True)
class FromRouter:
    router_id: str
    message: ToWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterJoined:
    router_id: str
    has_locality: bool = False
    """True if it hears of cached blocks from elsewhere, and wants none over the session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterLost:
    """The session is over: what that router asked for is cancelled."""

    router_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """The worker is told to end: it ends or gives back what it has within that time. Comes once."""

    within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """The worker is told on its own machine to take no new requests; those that it has go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FromConsumer:
    """A decode worker speaks to this worker as a producer; `peer_id` is where answers go."""

    peer_id: bytes
    message: ToProducer


@dataclass(frozen=True, slots=True, kw_only=True)
class FromProducer:
    """A prefill worker answers this worker as a consumer."""

    message: ToConsumer


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    result: StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFailed:
    """The engine could not execute the step in flight."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksumsComputed:
    """Answer to `ComputeChecksums`."""

    request: ComputeChecksums
    checksums: tuple[int, ...]
    """xxh3_64 of each block, in the order of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksumsFailed:
    """Answer to `ComputeChecksums`: its prompt cannot be handed over."""

    request: ComputeChecksums
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarCompiled:
    """Answer to `CompileGrammar`: drawing can begin, or, with an error, never can."""

    compilation_id: int
    error: str = ""
    code: ErrorCode = ErrorCode.INVALID_REQUEST
    """Code of the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterLoaded:
    """Answer to `LoadAdapter`: steps may use it, or, with an error, its requests end."""

    digest: str
    error: str = ""
    code: ErrorCode = ErrorCode.INVALID_REQUEST
    """Code of the error."""
    seconds: float = 0.0
    """Time that it took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullDone:
    """A pull has ended: nothing writes its local blocks any more."""

    pull_id: int
    failed_block_ids: tuple[int, ...] = ()
    """Local blocks whose content did not arrive or is wrong, in the order of the pull."""
    error: str = ""
    """The reason why blocks failed, for a person to read; empty if none did."""
    num_bytes: int = 0
    """Bytes that were written into the local pool."""
    seconds: float = 0.0
    """From the start of the first copy to the end of the last check."""
    sums: tuple[int, ...] = ()
    """Checksums of what one rank of several has now of each block, in the order of the pull."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullAborted:
    """Answer to `AbortPull`."""

    pull_id: int
    is_fenced: bool
    """True if nothing writes the local blocks any more, and no `PullDone` follows; one may have come before.
    Otherwise writes may go on until the `PullDone`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlDone:
    """Answer to `RunControl`: steps can go on."""

    run_id: int
    result_json: str = "null"
    code: ErrorCode | None = None
    """Code of the error, if it could not be done."""
    message: str = ""
    away: frozenset[EnginePart] = frozenset()
    """The parts that the engine lacks now."""
    weights: str = ""
    """Hash of the weights that the engine has now; empty where they are as before."""


WorkerEvent = (
    Leave
    | Drain
    | FromRouter
    | RouterJoined
    | RouterLost
    | FromConsumer
    | FromProducer
    | StepDone
    | StepFailed
    | ChecksumsComputed
    | ChecksumsFailed
    | GrammarCompiled
    | AdapterLoaded
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
class SendToConsumer:
    peer_id: bytes
    message: ToConsumer


@dataclass(frozen=True, slots=True, kw_only=True)
class SendToProducer:
    source: KVSource
    message: ToProducer


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeChecksums:
    """Compute the checksums of blocks that no one will write again."""

    request_id: str
    indices: tuple[int, ...]
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileGrammar:
    """Compile the form of a request's output; ends with one `GrammarCompiled`."""

    compilation_id: int
    structured_outputs: StructuredOutputsParams
    tenant: str = ""
    """Tenants take turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAdapter:
    """Load an adapter beside the steps; ends with one `AdapterLoaded`."""

    adapter: Adapter


@dataclass(frozen=True, slots=True, kw_only=True)
class DropAdapter:
    """Forget an adapter that nothing in flight uses."""

    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPull:
    """One block to copy."""

    remote_block_id: int
    local_block_id: int
    checksum: int | None = None
    """The producer's checksum of the remote block; None where the transport has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """Copy blocks from a producer's pool; ends with one `PullDone`, or with a fenced `PullAborted`."""

    pull_id: int
    """Unique among the pulls of a worker."""
    source: KVSource
    """The remote block ids are those of its epoch."""
    blocks: tuple[BlockPull, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortPull:
    """Give up a pull; ends with one `PullAborted`."""

    pull_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunControl:
    """Have the engine do what an operator asks; ends with one `ControlDone`. No step is in flight."""

    run_id: int
    action: ControlAction
    argument_json: str
    timeout_s: float
    """Time that whoever asks waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheChanged:
    """Tell whoever follows this worker's cache elsewhere than over a session."""

    delta: CacheDelta
    events: tuple[KVEvent, ...]
    """The same with the tokens of what was stored; prefixes come before what extends them."""


WorkerEffect = (
    SendToRouter
    | SendToConsumer
    | SendToProducer
    | ComputeChecksums
    | CompileGrammar
    | LoadAdapter
    | DropAdapter
    | Pull
    | AbortPull
    | RunControl
    | CacheChanged
)
