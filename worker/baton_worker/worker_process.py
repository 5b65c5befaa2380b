"""Puts a worker together from its settings and runs it until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
import zmq.asyncio

from baton_core.errors import InvalidConfigError
from baton_core.ranks.rank_layout import RankPlace
from baton_core.sessions.session import DEFAULT_TIMINGS, SessionTimings
from baton_core.sessions.worker_info import Role, WorkerInfo
from baton_engine.checkpoint.model_source import resolve_model
from baton_engine.device import resolve_device
from baton_engine.engine_settings import EngineSettings
from baton_engine.kernel_choice import choose_copy
from baton_engine.loading import LoadedEngine
from baton_engine.models.registry import read_model_config
from baton_engine.structured.absent_modules import import_with_placeholders
from baton_engine.structured.compiler import GrammarCompiler
from baton_engine.warm_up import GRAMMAR as WARM_UP_GRAMMAR
from baton_kv.backends import CONNECTORS
from baton_kv.connector import Capabilities, VerifiesBy
from baton_kv.curve import CurveKeys
from baton_kv.row_copies import copy_rows
from baton_kv.transport import Listen, Transport
from baton_prefill.producer_endpoint import ProducerEndpoint
from baton_service.cpu_quota import within_quota
from baton_service.keys import Keys
from baton_service.process import run_until_signal
from baton_service.reachability import bound_host, reachable_host, with_host
from baton_service.redis.redis_settings import RedisSettings
from baton_service.router_access import RouterAccess
from baton_service.stop_signals import DEFAULT_SHUTDOWN_TIMEOUT_S, on_first_signal
from baton_service.tls import ClientTls
from baton_service.tracing import Tracing, TracingSettings
from baton_service.tracing_start import start_tracing
from baton_worker.controls.worker_controls import WorkerControls
from baton_worker.core.scheduler_config import SchedulerConfig
from baton_worker.core.worker_config import WorkerConfig
from baton_worker.engine.resident_engine import ResidentEngine
from baton_worker.first_pulls import measure_expected
from baton_worker.health_server import HealthServer
from baton_worker.identity import model_identity
from baton_worker.kv_events.kv_events_config import KVEventsConfig
from baton_worker.kv_events.publisher import KVEventPublisher
from baton_worker.metrics_server import serving_metrics
from baton_worker.metrics_settings import NO_METRICS, MetricsSettings
from baton_worker.pool_placement import PoolPlacement, choose_device, choose_transport
from baton_worker.probes import Probes
from baton_worker.ranks.executor_settings import LOCAL, ExecutorSettings
from baton_worker.ranks.group_transfers import GroupTransfers, KVEndpoint
from baton_worker.redis.worker_sharing import open_worker_share
from baton_worker.worker_shell import Worker, WorkerParts

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """One worker as its command line describes it."""

    role: Role
    engine: EngineSettings
    executor: ExecutorSettings = LOCAL
    """How the ranks of its model are started."""
    routers: tuple[str, ...]
    redis: RedisSettings = field(default_factory=RedisSettings)
    """The Redis where other routers are found and cached blocks are written."""
    session_timeout_s: float = DEFAULT_TIMINGS.dead_after_s
    """Time that a router may be silent."""
    worker_id: str = ""
    """Chosen at random when empty."""
    peer_address: str = "tcp://127.0.0.1:0"
    kv_port: int = 0
    """Port of the TCP transport of KV blocks, on the host of the peer address; 0 takes any."""
    advertise_host: str = ""
    """Host at which other workers reach this one; found out when empty."""
    kv_transport: Transport = Transport.AUTO
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    num_threads: int = 0
    """Threads of a step; 0 leaves it to torch."""
    tokenizer: str | None = None
    """A folder or id; None is the model's own."""
    structured_outputs_backend: str = "auto"
    """The library that compiles grammars."""
    enable_prefix_caching: bool = True
    metrics: MetricsSettings = NO_METRICS
    allow_functions: bool = False
    """True if whoever reaches the router's operator routes may have functions called here."""
    kv_events: KVEventsConfig = field(default_factory=KVEventsConfig)
    """True, and the address, if changes of the cache are published."""
    tracing: TracingSettings = field(default_factory=TracingSettings)
    profiler_folder: str = ""
    """Folder of profiler traces; empty: none can be taken."""
    model_name: str = ""
    """As metrics have it; empty is the model's folder or id."""
    metrics_port: int | None = None
    """Port of /metrics and the probes, on the host of the peer address; 0 takes any, None serves none."""
    health_port: int | None = None
    """Port of gRPC's health service, on that host; 0 takes any, None serves none."""
    tls: ClientTls = field(default_factory=ClientTls)
    """Access to routers; its certificate is also that of /metrics."""
    api_keys: tuple[str, ...] = ()
    """The first is for routers, all are for /metrics."""
    open_metrics: bool = False
    """True if /metrics needs no key."""
    encrypts_peers: bool = True
    """True if what workers send each other is encrypted where `tls` is on."""
    data_parallel_rank: int = 0
    """Number of the data-parallel rank that it belongs to."""
    shutdown_timeout_s: float = DEFAULT_SHUTDOWN_TIMEOUT_S
    """Time that it continues once it is told to stop."""

    def __post_init__(self) -> None:
        if not self.routers and not self.redis.is_given:
            raise InvalidConfigError("--router is not given; allowed: one or more host:port, or --redis")
        if self.num_threads < 0:
            raise InvalidConfigError(f"num_threads is {self.num_threads}; allowed: an integer of at least 0")
        if self.kv_port and self.has_own_pools(resolve_device(self.engine.device)):
            why = "allowed where each rank has a pool and a port of its own: 0"
            raise InvalidConfigError(f"kv_port is {self.kv_port}; {why}")
        if self.kv_transport not in (allowed := tuple(Transport)):
            raise InvalidConfigError(f"kv_transport is {self.kv_transport!r}; allowed: {', '.join(allowed)}")

    def has_own_pools(self, device: torch.device) -> bool:
        """Return True if each rank has a KV pool with its part of every block, as all have on GPUs."""
        num_ranks = self.engine.parallel.num_ranks
        is_shared = self.executor.shares_pool and (device.type == "cpu" or num_ranks == 1)
        return (num_ranks > 1 or self.executor.has_pools_apart) and not is_shared


def run_worker(settings: WorkerSettings) -> None:
    """Bind the peer channel, load the model, serve the routers until a signal to stop, then leave.

    Raises:
        BatonError: the worker cannot start, or a router rejects it.
    """
    _log.info("loading %s", settings.model_name or settings.engine.model)
    with suppress(ImportError):  # it is optional, and its import of Transformers would take most of a start
        import_with_placeholders("xgrammar", "transformers")
    asyncio.run(run_until_signal(_serve(settings)))


async def _serve(settings: WorkerSettings) -> None:
    torch.set_num_threads(settings.num_threads or within_quota(torch.get_num_threads()))
    context = zmq.asyncio.Context()
    stack = AsyncExitStack()
    try:
        access = RouterAccess(settings.tls, settings.api_keys[0] if settings.api_keys else "")
        curve = CurveKeys.make() if settings.tls.is_on and settings.encrypts_peers else None
        producer = ProducerEndpoint(context, settings.peer_address, curve)
        epoch = time.time_ns()
        towards = settings.routers[0] if settings.routers else settings.redis.endpoint
        host = reachable_host(producer.address, settings.advertise_host, towards)
        followers = [stack.enter_context(closing(one)) for one in cache_followers(settings, epoch)]
        probes = _probes(settings)
        metrics_port = await _serve_probes(settings, bound_host(producer.address), probes, stack)
        listen = Listen(
            host=bound_host(producer.address), port=settings.kv_port, advertised_host=host, curve=curve
        )
        device = choose_device(settings.engine.device, settings.kv_transport)
        transport = choose_transport(settings.kv_transport, device)
        placement, transfers = _placement(settings, device, transport, epoch, listen)
        grammars = await asyncio.to_thread(grammar_compiler, settings)
        engine = await _unless_stopped(_load, settings, device, grammars, placement, transfers)
        assert placement.connector is not None, "loading places the pool"
        worker_id = settings.worker_id or f"{settings.role}-{secrets.token_hex(4)}"
        config = worker_config(settings, engine.loaded, placement.connector.capabilities, worker_id, epoch)
        endpoint = with_host(producer.address, host)
        peer_address = curve.address(endpoint) if curve else endpoint
        info = replace(
            worker_info(settings.role, config, peer_address, placement.connector.describe()),
            metrics_address=f"{host}:{metrics_port}" if metrics_port else "",
            data_parallel_rank=settings.data_parallel_rank,
        )
        parts = WorkerParts(
            config=config,
            info=info,
            engine=engine,
            controls=worker_controls(settings, engine),
            connector=placement.connector,
            context=context,
            producer=producer,
            grammars=grammars,
            routers=settings.routers,
            access=access,
            session_timings=SessionTimings(dead_after_s=settings.session_timeout_s),
            share=open_worker_share(settings.redis, info),
            followers=followers,
            tracing=_tracing(settings, worker_id),
            model_name=settings.model_name or settings.engine.model,
            expected_bytes_per_s=await asyncio.to_thread(measure_expected, config.kv_spec.block_bytes),
        )
        worker = Worker(parts)
        probes.watch(worker.metrics, worker.drain)
        _log.info("worker %s registers at %s", worker_id, _named_routers(settings))
        with on_first_signal(partial(worker.leave, settings.shutdown_timeout_s)):
            await worker.run()
    finally:
        await stack.aclose()
        context.destroy(linger=0)


async def _unless_stopped(load: Callable[..., T], *args: object) -> T:
    """Load on a thread; a process that is told to stop meanwhile ends at once, as its thread never would."""
    try:
        return await asyncio.to_thread(load, *args)
    except asyncio.CancelledError:
        _log.info("stopped while loading")
        logging.shutdown()
        os._exit(0)


def _named_routers(settings: WorkerSettings) -> str:
    return ", ".join((*settings.routers, *["those that it finds"] * settings.redis.is_given))


def _tracing(settings: WorkerSettings, worker_id: str) -> Tracing:
    return start_tracing(settings.tracing, service=f"baton-{settings.role}-worker", instance_id=worker_id)


def _probes(settings: WorkerSettings) -> Probes:
    metrics_keys = Keys(() if settings.open_metrics else settings.api_keys)
    return Probes(asyncio.get_running_loop(), metrics_keys, drain_keys=Keys(settings.api_keys))


async def _serve_probes(settings: WorkerSettings, host: str, probes: Probes, stack: AsyncExitStack) -> int:
    """Serve them over HTTP and gRPC, where there are ports, until the stack ends.

    Returns the port of HTTP; 0 where there is none.

    Raises:
        InvalidConfigError: a port cannot be taken.
    """
    if settings.health_port is not None:
        health = HealthServer(host, settings.health_port, probes)
        await health.start()
        stack.push_async_callback(health.close)
        _log.info("gRPC health at %s:%d", host, health.port)
    if settings.metrics_port is None:
        return 0
    tls = settings.tls.server_context()
    return stack.enter_context(serving_metrics(host, settings.metrics_port, probes, tls)).port


def _load(
    settings: WorkerSettings,
    device: torch.device,
    grammars: GrammarCompiler,
    placement: PoolPlacement,
    transfers: GroupTransfers | None,
) -> ResidentEngine:
    settings.metrics.require_possible(settings.engine)
    return ResidentEngine(
        replace(settings.engine, device=device.type),
        grammars,
        allocate_pool=placement.allocate,
        give_back_pool=placement.give_back,
        executor=settings.executor,
        transfers=transfers,
    )


def _placement(
    settings: WorkerSettings, device: torch.device, transport: Transport, epoch: int, listen: Listen
) -> tuple[PoolPlacement, GroupTransfers | None]:
    """Return where the KV pool lies, and what moves blocks where each rank has a pool."""
    copy = choose_copy(device, settings.engine.cpu_kernels) or copy_rows
    if not settings.has_own_pools(device):
        make_connector = CONNECTORS[transport]
        return PoolPlacement(lambda spec: make_connector(spec, epoch, listen, copy), device), None
    endpoint = KVEndpoint(
        transport=transport,
        epoch=epoch,
        host=listen.host,
        advertised_host=listen.advertised_host,
        is_encrypted=listen.curve is not None,
    )
    sizes = settings.engine.parallel
    transfers = GroupTransfers(sizes, endpoint, listen, copy)
    place = RankPlace(sizes=sizes, rank=sizes.leader)
    return PoolPlacement(transfers.make_connector, device, place), transfers


def cache_followers(settings: WorkerSettings, epoch: int) -> tuple[KVEventPublisher, ...]:
    """Whoever hears of changes of the cache besides the routers.

    Raises:
        InvalidConfigError: an endpoint cannot be bound.
    """
    if not settings.kv_events.is_published:
        return ()
    return (KVEventPublisher(settings.kv_events, epoch, data_parallel_rank=settings.data_parallel_rank),)


def worker_controls(settings: WorkerSettings, engine: ResidentEngine) -> WorkerControls:
    """Executes what operators ask of the engine."""
    return WorkerControls(
        engine, allows_functions=settings.allow_functions, profiler_folder=settings.profiler_folder
    )


def grammar_compiler(settings: WorkerSettings, *, warms_up: bool = True) -> GrammarCompiler:
    """Make the compiler of structured outputs for a model. With `warms_up` it compiles one while the weights
    are read; otherwise the first request with a grammar waits for the tokenizer and the library.
    """
    engine = settings.engine
    config = read_model_config(resolve_model(engine.model), overrides=engine.config_overrides)
    model = _tokenizer_folder(settings), config.vocab_size, config.eos_token_ids
    grammars = GrammarCompiler(*model, backend=settings.structured_outputs_backend, warms_up=warms_up)
    if warms_up:
        grammars.compile(WARM_UP_GRAMMAR)
    return grammars


def _tokenizer_folder(settings: WorkerSettings) -> Path:
    if settings.tokenizer is None:
        return resolve_model(settings.engine.model)
    return resolve_model(settings.tokenizer, field="tokenizer")


def worker_config(
    settings: WorkerSettings, engine: LoadedEngine, capabilities: Capabilities, worker_id: str, epoch: int
) -> WorkerConfig:
    """Return the core's view of a loaded worker.

    Raises:
        InvalidModelError: the tokenizer is broken.
    """
    identity = model_identity(
        settings.engine,
        engine,
        tokenizer=_tokenizer_folder(settings),
        structured_outputs_backend=settings.structured_outputs_backend,
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
        scheduler=_scheduler_config(settings, engine),
        logits_processors=frozenset(settings.engine.logits_processors),
        has_batch_processors=engine.has_batch_processors,
        enable_prefix_caching=settings.enable_prefix_caching
        and (engine.pooling is None or engine.pooling.is_causal),
        metrics=settings.metrics.for_engine(engine, settings.engine.parallel),
        pooling=engine.pooling,
        max_cpu_loras=settings.engine.adapters.max_cpu_loras if settings.engine.adapters else 0,
        embedding_size=getattr(engine.runner.model, "embedding_size", 0),
        plans_ahead=settings.engine.plans_ahead(engine.runner.model.device),
        num_stages=settings.engine.parallel.pipeline,
        speculative=settings.engine.speculative,
        publishes_cache=settings.redis.is_given or settings.kv_events.is_published,
    )


def _scheduler_config(settings: WorkerSettings, engine: LoadedEngine) -> SchedulerConfig:
    """Return the limits of steps: one that computes prompts whole takes the longest there may be."""
    longest = engine.kv_cache.max_model_len
    limits, model = settings.scheduler.for_model_len(longest), engine.pooling
    if model is None or not model.needs_whole_prompt(model.tasks[0]):
        return limits
    return replace(limits, max_num_batched_tokens=max(limits.max_num_batched_tokens, longest))


def worker_info(role: Role, config: WorkerConfig, peer_address: str, kv_description: bytes) -> WorkerInfo:
    """The registration of the worker."""
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
        block_bytes=config.kv_spec.block_bytes,
        has_prefix_cache=config.enable_prefix_caching,
    )
