"""Puts a worker together from its settings and runs it until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import zmq.asyncio

from baton.process import run_until_signal
from baton.worker import Worker, WorkerParts
from baton_core.errors import InvalidConfigError
from baton_core.kv_spec import KVSpec
from baton_core.scheduler import SchedulerConfig
from baton_core.worker_config import WorkerConfig
from baton_core.worker_info import ModelIdentity, Role, WorkerInfo
from baton_engine.fingerprint import model_fingerprint
from baton_engine.loading import EngineSettings, LoadedEngine, load_runner
from baton_engine.model_folder import resolve_model
from baton_kv.connector import Capabilities, KVConnector, VerifiesBy
from baton_kv.shared_memory import SharedMemoryConnector
from baton_prefill.holder_endpoint import HolderEndpoint

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """One worker as its command line describes it."""

    role: Role
    engine: EngineSettings
    routers: tuple[str, ...]
    worker_id: str = ""
    """Chosen at random when empty."""
    peer_address: str = "tcp://127.0.0.1:0"
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    num_threads: int = 0
    """Threads of a step; 0 leaves it to torch."""

    def __post_init__(self) -> None:
        if not self.routers:
            raise InvalidConfigError("--router is not given; allowed: one or more host:port")
        for name, least in (("max_num_seqs", 1), ("max_num_batched_tokens", 1), ("num_threads", 0)):
            if getattr(self, name) < least:
                flag = "--" + name.replace("_", "-")
                raise InvalidConfigError(
                    f"{flag} is {getattr(self, name)}; allowed: an integer of at least {least}"
                )


@dataclass(slots=True)
class PoolPlacement:
    """Lets a connector place the pool once the model's shape is known."""

    make_connector: Callable[[KVSpec], KVConnector]
    connector: KVConnector | None = field(default=None, init=False)

    def allocate(self, spec: KVSpec, num_blocks: int) -> torch.Tensor:
        """Make the connector and its pool `[num_blocks, *spec.block_shape]`."""
        self.connector = self.make_connector(spec)
        return self.connector.allocate(num_blocks)


def run_worker(settings: WorkerSettings) -> None:
    """Bind the peer channel, load the model, serve the routers until SIGTERM or SIGINT.

    Raises:
        BatonError: the worker cannot start, or a router rejects it.
    """
    asyncio.run(run_until_signal(_serve(settings)))


async def _serve(settings: WorkerSettings) -> None:
    if settings.num_threads:
        torch.set_num_threads(settings.num_threads)
    context = zmq.asyncio.Context()
    try:
        holder = HolderEndpoint(context, settings.peer_address)
        epoch = time.time_ns()
        placement = PoolPlacement(lambda spec: SharedMemoryConnector(spec, epoch))
        engine = await asyncio.to_thread(load_runner, settings.engine, placement.allocate)
        assert placement.connector is not None, "loading places the pool"
        worker_id = settings.worker_id or f"{settings.role}-{secrets.token_hex(4)}"
        config = worker_config(settings, engine, placement.connector.capabilities, worker_id, epoch)
        parts = WorkerParts(
            config=config,
            info=worker_info(settings.role, config, holder.address, placement.connector.describe()),
            runner=engine.runner,
            connector=placement.connector,
            context=context,
            holder=holder,
            routers=settings.routers,
        )
        _log.info("worker %s serves %s", worker_id, ", ".join(settings.routers))
        await Worker(parts).run()
    finally:
        context.destroy(linger=0)


def worker_config(
    settings: WorkerSettings, engine: LoadedEngine, capabilities: Capabilities, worker_id: str, epoch: int
) -> WorkerConfig:
    """The core's view of a loaded worker."""
    identity = ModelIdentity(
        model=model_fingerprint(resolve_model(settings.engine.model)),
        dtype=engine.kv_spec.dtype,
        kv_layout=engine.kv_spec.layout,
        block_size=engine.kv_spec.block_size,
        transport=capabilities.name,
    )
    return WorkerConfig(
        worker_id=worker_id,
        epoch=epoch,
        identity=identity,
        kv_spec=engine.kv_spec,
        num_blocks=engine.kv_cache.num_blocks,
        max_model_len=engine.kv_cache.max_model_len,
        vocab_size=engine.config.vocab_size,
        eos_token_ids=frozenset(engine.config.eos_token_ids),
        is_verified_by_checksum=capabilities.verifies_by is VerifiesBy.CHECKSUM,
        scheduler=SchedulerConfig(
            block_size=engine.kv_spec.block_size,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
        ),
    )


def worker_info(role: Role, config: WorkerConfig, peer_address: str, kv_description: bytes) -> WorkerInfo:
    """How the worker registers."""
    return WorkerInfo(
        worker_id=config.worker_id,
        epoch=config.epoch,
        role=role,
        identity=config.identity,
        max_model_len=config.max_model_len,
        vocab_size=config.vocab_size,
        num_blocks=config.num_blocks,
        max_num_seqs=config.scheduler.max_num_seqs,
        peer_address=peer_address,
        kv_description=kv_description,
    )
