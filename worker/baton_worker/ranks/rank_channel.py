"""The control channel between the leader of a group of ranks and one of the others: frames over a socket.

Everything travels as msgpack, and what an operator asks of all ranks as it does between router and worker.
Nothing is pickled.
"""

from __future__ import annotations

import math
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from baton_core.errors import BatonError, ErrorCode, InvalidConfigError, InvalidModelError, RequestError
from baton_core.model.model_description import ModelDescription
from baton_core.msgpack import decoder_of
from baton_core.prompt_embeds import PromptEmbeds
from baton_core.requests.pooling import PoolingSpec
from baton_core.worker.step_plan import (
    Followed,
    LogprobsSpec,
    SampleSpec,
    SeqId,
    SequenceSlice,
    StepPlan,
)
from baton_core.worker.worker_events import (
    AbortPull,
    ChecksumsComputed,
    ChecksumsFailed,
    ComputeChecksums,
    Pull,
    PullAborted,
    PullDone,
)
from baton_engine.engine_settings import EngineSettings
from baton_kv.group_connector import Answer
from baton_kv.transfer_thread import TransferEffect, TransferEvent
from baton_worker.ranks.group_transfers import KVEndpoint

_LENGTH: Final = struct.Struct("<I")
MAX_HELLO_BYTES: Final = 2**16
"""Whoever sends a hello has not shown yet that it knows the secret."""
_NOBODY: Final = SeqId("", 0)
_SAMPLE: Final = SampleSpec(seed=0, position=0, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
"""Stands for whatever is drawn from a slice's logits: the leader draws it."""


class Pools(StrEnum):
    """The KV pools of a group: one that all ranks map, or one for each rank."""

    SHARED = "shared"
    OWN = "own"


class HelloFrame(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """A rank that was not started with a channel introduces itself."""

    rank: int
    token: str = ""
    """The secret that its starter gave it."""
    machine: str
    """Its `own_machine`."""
    started_with: dict[str, str]
    """Values that must be as at the leader, by the names that an error has."""


class StartFrame(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Become this rank: load its part of the model."""

    rank: int
    settings: EngineSettings
    num_threads: int
    """Threads of a step."""
    store: tuple[str, int] | None
    """Host and port of the store at which the ranks meet; None: the memory of their links comes with this
    frame."""
    machines: tuple[str, ...] = ()
    """`own_machine` of each rank, where they meet at a store."""
    pools: Pools
    description: ModelDescription
    """The model as the leader's folder has it."""
    endpoint: KVEndpoint | None = None
    """How other workers read the rank's own pool; None: they do not."""


class SharedSlice(msgspec.Struct, frozen=True, array_like=True):
    """The part of a `SequenceSlice` that other ranks need: tokens and blocks, not how tokens are drawn."""

    token_ids: tuple[int, ...]
    start: int
    block_tables: tuple[tuple[int, ...], ...]
    is_sampled: bool
    num_prompt_targets: int
    pooling: PoolingSpec | None = None
    embeds: tuple[PromptEmbeds, ...] = ()
    adapter: str = ""
    num_drafts: int = 0


class RefusedFrame(msgspec.Struct, frozen=True, tag="refused"):
    """The rank's hello is refused."""

    message: str


class PoolFrame(msgspec.Struct, frozen=True, tag="pool"):
    """The KV pool lies in the memory behind the descriptor that comes with this frame."""


class StepFrame(msgspec.Struct, frozen=True, tag="step"):
    """Compute this step, and answer nothing."""

    step_id: int
    slices: tuple[SharedSlice, ...]
    block_copies: tuple[tuple[int, int], ...] = ()
    """Copies in the rank's own pool; in a shared one the leader copies blocks."""
    follows: Followed | None = None
    """As in `StepPlan`: the leader gives the tokens to the other ranks within the step."""

    @classmethod
    def of(cls, plan: StepPlan, pools: Pools) -> StepFrame:
        slices = tuple(
            SharedSlice(
                token_ids=piece.token_ids,
                start=piece.start,
                block_tables=piece.block_tables,
                is_sampled=bool(piece.samples),
                num_prompt_targets=len(piece.prompt_targets) if piece.prompt_logprobs else 0,
                pooling=piece.pooling,
                embeds=piece.embeds,
                adapter=piece.adapter,
                num_drafts=piece.num_drafts,
            )
            for piece in plan.slices
        )
        block_copies = plan.block_copies if pools is Pools.OWN else ()
        return cls(plan.step_id, slices, block_copies, plan.follows)

    def plan(self) -> StepPlan:
        """Return the plan as a rank follows it."""
        slices = tuple(map(_followed, self.slices))
        return StepPlan(
            step_id=self.step_id, slices=slices, block_copies=self.block_copies, follows=self.follows
        )


class CallFrame(msgspec.Struct, frozen=True, tag="call"):
    """Do what an operator asks, and answer."""

    action: str
    """One of `ControlAction`."""
    argument_json: str


class AdapterFrame(msgspec.Struct, frozen=True, kw_only=True, tag="adapter"):
    """Load a LoRA adapter beside steps, or forget it, and answer."""

    digest: str
    path: str = ""
    """Its folder; empty forgets it."""


class TransferFrame(msgspec.Struct, frozen=True, kw_only=True, tag="transfer"):
    """Execute one of these with the rank's own pool, and answer with a `TransferredFrame`."""

    pull: Pull | None = None
    abort: AbortPull | None = None
    checksums: ComputeChecksums | None = None

    @classmethod
    def of(cls, effect: TransferEffect) -> TransferFrame:
        match effect:
            case Pull():
                return cls(pull=effect)
            case AbortPull():
                return cls(abort=effect)
            case ComputeChecksums():
                return cls(checksums=effect)

    @property
    def effect(self) -> TransferEffect:
        found = self.pull or self.abort or self.checksums
        assert found is not None, "it has one"
        return found


class StopFrame(msgspec.Struct, frozen=True, tag="stop"):
    """End."""


class AliveFrame(msgspec.Struct, frozen=True, tag="alive"):
    """The rank's process runs."""


class AnswerFrame(msgspec.Struct, frozen=True, tag="answer"):
    """The result of a call, or the error that it raised."""

    result_json: str = "null"
    code: str = ""
    """One of `ErrorCode` if it failed."""
    message: str = ""
    is_of_adapter: bool = False
    """True if it answers an `AdapterFrame`."""


class TransferredFrame(msgspec.Struct, frozen=True, kw_only=True, tag="transferred"):
    """Reports of transfers, in any order, or the description of the rank's pool."""

    description: bytes = b""
    done: tuple[PullDone, ...] = ()
    aborted: tuple[PullAborted, ...] = ()
    computed: tuple[ChecksumsComputed, ...] = ()
    failed: tuple[ChecksumsFailed, ...] = ()

    @classmethod
    def of(cls, events: Sequence[TransferEvent]) -> TransferredFrame:
        return cls(
            done=tuple(event for event in events if isinstance(event, PullDone)),
            aborted=tuple(event for event in events if isinstance(event, PullAborted)),
            computed=tuple(event for event in events if isinstance(event, ChecksumsComputed)),
            failed=tuple(event for event in events if isinstance(event, ChecksumsFailed)),
        )

    @property
    def answers(self) -> tuple[Answer, ...]:
        description = (self.description,) if self.description else ()
        return (*description, *self.done, *self.aborted, *self.computed, *self.failed)


class FailedFrame(msgspec.Struct, frozen=True, tag="failed"):
    """The rank ends because of an error."""

    code: str
    """One of `ErrorCode`."""
    message: str


ToRank: TypeAlias = (
    StartFrame | RefusedFrame | PoolFrame | StepFrame | CallFrame | AdapterFrame | TransferFrame | StopFrame
)
ToLeader: TypeAlias = HelloFrame | AliveFrame | AnswerFrame | TransferredFrame | FailedFrame
OF_SETTINGS: Final[dict[str, type[BatonError]]] = {
    ErrorCode.INVALID_MODEL: InvalidModelError,
    ErrorCode.INVALID_CONFIG: InvalidConfigError,
}
"""Errors that the leader would meet too."""
_decode_to_leader: Final[Callable[[bytes], ToLeader]] = decoder_of(ToLeader)


encode_frame: Final[Callable[[ToRank | ToLeader], bytes]] = msgspec.msgpack.Encoder().encode
decode_to_rank: Final[Callable[[bytes], ToRank]] = decoder_of(ToRank)


def _followed(piece: SharedSlice) -> SequenceSlice:
    return SequenceSlice(
        seq_id=_NOBODY,
        token_ids=piece.token_ids,
        start=piece.start,
        block_tables=piece.block_tables,
        samples=(_SAMPLE,) * (1 + piece.num_drafts) if piece.is_sampled else (),
        prompt_targets=(0,) * piece.num_prompt_targets,
        prompt_logprobs=LogprobsSpec() if piece.num_prompt_targets else None,
        pooling=piece.pooling,
        embeds=piece.embeds,
        adapter=piece.adapter,
        num_drafts=piece.num_drafts,
    )


def error_of(code: str, message: str) -> BatonError:
    """Return the error that another rank has raised."""
    kind = OF_SETTINGS.get(code)
    return kind(message) if kind else RequestError(ErrorCode(code), message)


def own_machine() -> str:
    """Return a name that exactly those processes share who can open each other's memory."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')} {os.getuid()}"


class RankChannel:
    """One end of a channel. Any thread sends, and one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.machine = own_machine()
        """Machine of the other end: this one, until it says otherwise."""
        self._sending = threading.Lock()
        self._received = bytearray()
        self._descriptors: list[int] = []
        self.has_ended = threading.Event()
        """Set once the other end is known to be gone."""

    def send(self, frame: ToRank | ToLeader) -> None:
        """Send a frame; raises OSError where the other end is gone or does not read."""
        self.send_encoded(encode_frame(frame))

    def send_encoded(self, content: bytes) -> None:
        """Send what `encode_frame` returned, as `send` does."""
        with self._sending:
            self._connection.sendall(_LENGTH.pack(len(content)) + content)

    def send_with(self, descriptor: int, frame: ToRank) -> None:
        """Send a frame with a descriptor, which stays open here."""
        content = encode_frame(frame)
        content = _LENGTH.pack(len(content)) + content
        with self._sending:
            num_sent = socket.send_fds(self._connection, [content], [descriptor])
            self._connection.sendall(content[num_sent:])

    def take_descriptor(self) -> int:
        """Return the oldest descriptor that has come; the caller closes it."""
        return self._descriptors.pop(0)

    def receive_at_rank(self) -> ToRank | None:
        """Wait for a frame of the leader; None once it is gone."""
        content = self._receive()
        return None if content is None else decode_to_rank(content)

    def receive_hello(self, within_s: float) -> HelloFrame | None:
        """Wait for a hello; None where what comes is none, is larger than one, or is late."""
        try:
            content = self._receive(MAX_HELLO_BYTES, time.monotonic() + within_s)
            hello = None if content is None else _decode_to_leader(content)
        except (OSError, msgspec.DecodeError):
            return None
        self._connection.settimeout(None)
        return hello if isinstance(hello, HelloFrame) else None

    def receive_at_leader(self) -> ToLeader | None:
        """Wait for a frame of a rank; None once it is gone."""
        content = self._receive()
        return None if content is None else _decode_to_leader(content)

    @property
    def own_host(self) -> str:
        """Address of this machine on the way to the other end; empty where that is on this machine too."""
        is_pair = self._connection.family == socket.AF_UNIX
        return "" if is_pair else str(self._connection.getsockname()[0])

    @property
    def is_ahead(self) -> bool:
        """True if more has come than what was received: it does not wait in the socket any more."""
        return bool(self._received)

    @property
    def is_closed(self) -> bool:
        """True if the other end is gone, and all that it sent has been received."""
        try:
            return not self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True

    def shut_down(self) -> None:
        """End the connection, also for whoever waits for a frame."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()

    def fileno(self) -> int:
        return self._connection.fileno()

    def _receive(self, max_bytes: float = math.inf, deadline_s: float = math.inf) -> bytes | None:
        header = self._read(_LENGTH.size, deadline_s)
        num_bytes = 0 if header is None else _LENGTH.unpack(header)[0]
        content = self._read(num_bytes, deadline_s) if 0 < num_bytes <= max_bytes else None
        if content is None:
            self.has_ended.set()
        return content

    def _read(self, num_bytes: int, deadline_s: float) -> bytes | None:
        while len(self._received) < num_bytes:
            try:
                if deadline_s < math.inf:
                    self._connection.settimeout(max(0.0, deadline_s - time.monotonic()))
                part, descriptors, _, _ = socket.recv_fds(self._connection, 1 << 16, 1)
            except ConnectionError:
                return None
            if not part:
                return None
            self._received += part
            self._descriptors += descriptors
        content = bytes(self._received[:num_bytes])
        del self._received[:num_bytes]
        return content
