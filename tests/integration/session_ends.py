"""The two ends of sessions: a router and a worker that record what they see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from baton_core.errors import IncompatibleWorkerError
from baton_core.model.model_identity import ModelIdentity
from baton_core.sessions.router_messages import Cancel, SequenceOutput, TokenBatch
from baton_core.sessions.session import DEFAULT_TIMINGS, SessionTimings
from baton_core.sessions.worker_info import Role, WorkerInfo, WorkerLoad
from baton_proto.v1.session_pb2_grpc import add_SessionsServicer_to_server
from baton_router.grpc.server import GrpcServer
from baton_router.process.session_server import SessionServer, WorkerCallbacks
from baton_worker.session_client import RouterCallbacks, SessionClient

PATIENT = SessionTimings(dead_after_s=20.0, resume_within_s=20.0)
"""Timings of sessions that last however slow the machine is."""
BRISK = SessionTimings(heartbeat_s=0.1, resume_within_s=0.4)


def make_info(epoch: int = 1, *, block_size: int = 32) -> WorkerInfo:
    identity = ModelIdentity(
        weights="abc", dtype="bfloat16", kv_layout="LKHTD", block_size=block_size, transport="tcp"
    )
    return WorkerInfo(
        worker_id="w1",
        epoch=epoch,
        role=Role.MIXED,
        identity=identity,
        max_model_len=1024,
        vocab_size=100,
        num_blocks=64,
        max_num_seqs=8,
        peer_address="tcp://127.0.0.1:1",
        kv_description=b"pool",
    )


def command(number: int) -> Cancel:
    return Cancel(request_id=f"r{number}")


def tokens(token_id: int) -> TokenBatch:
    return TokenBatch(outputs=(SequenceOutput(request_id="r", index=0, token_ids=(token_id,)),))


@dataclass
class Router:
    """A router that records its events in order."""

    timings: SessionTimings = DEFAULT_TIMINGS
    epoch: int = 1000
    seen: list[object] = field(default_factory=list)
    loads: list[WorkerLoad] = field(default_factory=list)
    identity: ModelIdentity = field(default_factory=lambda: make_info().identity)
    takes_any: bool = True
    """False refuses all workers for good."""
    num_checks: int = 0
    server: SessionServer = field(init=False)

    def __post_init__(self) -> None:
        callbacks = WorkerCallbacks(
            check=self.check,
            on_joined=self.on_joined,
            on_message=lambda worker_id, message: self.seen.append(message),
            on_load=lambda worker_id, load: self.loads.append(load),
            on_left=lambda worker_id, reason: self.seen.append(("left", reason)),
        )
        self.server = SessionServer("r1", self.epoch, callbacks, self.timings)

    def check(self, info: WorkerInfo) -> None:
        self.num_checks += 1
        if not self.takes_any:
            raise IncompatibleWorkerError(
                "model is 'a'; allowed: 'b', that of this router", is_permanent=True
            )
        self.identity.require_compatible(info.identity)

    def on_joined(self, info: WorkerInfo) -> None:
        self.identity.require_compatible(info.identity)
        self.seen.append(("joined", info))

    def token_ids(self) -> list[int]:
        batches = [message for message in self.seen if isinstance(message, TokenBatch)]
        return [t for batch in batches for output in batch.outputs for t in output.token_ids]


async def start(router: Router, address: str = "127.0.0.1:0") -> tuple[GrpcServer, int]:
    server = GrpcServer()
    add_SessionsServicer_to_server(router.server, server.server)
    port = server.bind(address, flag="--listen")
    await server.start()
    return server, port


@asynccontextmanager
async def serving(router: Router, address: str = "127.0.0.1:0") -> AsyncIterator[int]:
    server, port = await start(router, address)
    try:
        yield port
    finally:
        router.server.close()
        await server.stop(1.0)


@dataclass
class Worker:
    """A worker that records its events in order."""

    timings: SessionTimings = DEFAULT_TIMINGS
    seen: list[object] = field(default_factory=list)
    router_ids: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def callbacks(self) -> RouterCallbacks:
        return RouterCallbacks(
            on_joined=lambda router_id, has_locality: self.router_ids.append(router_id),
            on_message=lambda router_id, message: self.seen.append(message),
            on_lost=self.lost.append,
        )


@asynccontextmanager
async def dialing(worker: Worker, port: int, info: WorkerInfo | None = None) -> AsyncIterator[SessionClient]:
    load = WorkerLoad(num_running=3, step_age_s=0.25)
    client = SessionClient(
        f"127.0.0.1:{port}", info or make_info(), lambda: load, worker.callbacks(), worker.timings
    )
    running = asyncio.create_task(client.run())
    try:
        yield client
    finally:
        await client.close()
        await running
