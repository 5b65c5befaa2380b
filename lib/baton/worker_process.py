"""Puts a worker together from its settings and runs it until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from dataclasses import dataclass, field, replace

import torch
import zmq.asyncio

from baton.pool_placement import PoolPlacement, choose_device, choose_transport
from baton.process import run_until_signal
from baton.reachability import bound_host, reachable_host, with_host
from baton.worker import Worker, WorkerParts
from baton_core.errors import InvalidConfigError
from baton_core.scheduler_config import SchedulerConfig
from baton_core.worker_config import WorkerConfig
from baton_core.worker_info import ModelIdentity, Role, WorkerInfo
from baton_engine.fingerprint import model_fingerprint
from baton_engine.loading import EngineSettings, LoadedEngine, load_runner
from baton_engine.model_folder import resolve_model
from baton_kv.backends import BACKENDS
from baton_kv.connector import Capabilities, VerifiesBy
from baton_kv.transport import Listen, Transport
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
    advertise_host: str = ""
    """Where other workers reach this one; found out when empty."""
    kv_transport: Transport = Transport.AUTO
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    num_threads: int = 0
    """Threads of a step; 0 leaves it to torch."""

    def __post_init__(self) -> None:
        if not self.routers:
            raise InvalidConfigError("--router is not given; allowed: one or more host:port")
        if self.num_threads < 0:
            raise InvalidConfigError(f"num_threads is {self.num_threads}; allowed: an integer of at least 0")
        if self.kv_transport not in (allowed := tuple(Transport)):
            raise InvalidConfigError(f"kv_transport is {self.kv_transport!r}; allowed: {', '.join(allowed)}")


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
        host = reachable_host(holder.address, settings.advertise_host, settings.routers[0])
        listen = Listen(host=bound_host(holder.address), advertised_host=host)
        device = choose_device(settings.engine.device, settings.kv_transport)
        make_connector = BACKENDS[choose_transport(settings.kv_transport, device)]
        placement = PoolPlacement(lambda spec: make_connector(spec, epoch, listen), device)
        placed = replace(settings.engine, device=device.type)
        engine = await asyncio.to_thread(load_runner, placed, placement.allocate)
        assert placement.connector is not None, "loading places the pool"
        worker_id = settings.worker_id or f"{settings.role}-{secrets.token_hex(4)}"
        config = worker_config(settings, engine, placement.connector.capabilities, worker_id, epoch)
        peer_address = with_host(holder.address, host)
        parts = WorkerParts(
            config=config,
            info=worker_info(settings.role, config, peer_address, placement.connector.describe()),
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
        model=model_fingerprint(resolve_model(settings.engine.model), engine.config.kv_variant),
        dtype=engine.kv_spec.dtype,
        kv_layout=engine.kv_spec.layout,
        block_size=engine.kv_spec.block_size,
        kv_windows=engine.kv_spec.paging.windows,
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
        scheduler=settings.scheduler.for_model_len(engine.kv_cache.max_model_len),
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
