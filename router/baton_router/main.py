"""One router process: its ports, its model, its services; from start to the signal to stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import platform
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from baton_core.errors import BatonError
from baton_core.sessions.session import SessionTimings
from baton_proto.v1 import baton_pb2, session_pb2
from baton_proto.v1.baton_pb2_grpc import add_BatonServicer_to_server, add_OperatorServicer_to_server
from baton_proto.v1.session_pb2_grpc import add_SessionsServicer_to_server
from baton_router.batches.batches import Batches
from baton_router.gateway.picker_server import PickerServer
from baton_router.group.member import Member
from baton_router.group.process_sharing import ProcessSharing
from baton_router.grpc.server import GrpcServer, refuse_taken
from baton_router.grpc.services import BatonService, OperatorService
from baton_router.http.app import make_app
from baton_router.http.app_state import AppState
from baton_router.http.chat.output_parsers import read_parsers
from baton_router.http.connections.server import HttpServer, listen
from baton_router.http.debug.requests import answer_process
from baton_router.http.inner_calls import LineCalls
from baton_router.http.response_stores.local_responses import open_response_store
from baton_router.metrics.request_metrics import RequestMetrics
from baton_router.metrics.router_metrics import RouterMetrics
from baton_router.operations.fleet_status import FleetStatus
from baton_router.process.core_config import core_config, log_shares
from baton_router.process.generation_service import GenerationService
from baton_router.process.launcher_news import follow_launcher
from baton_router.process.router import Router
from baton_router.process.router_settings import RouterSettings
from baton_router.redis.router_sharing import open_router_share
from baton_router.requests.resume_tokens import ResumeTokens
from baton_router.requests.served_adapters import open_adapters
from baton_router.streams.request_spans import RequestSpans
from baton_router.text.generation_defaults import with_generation_config
from baton_router.text.model_folder import find_model_folder, read_chat_template, read_model_folder
from baton_router.text.model_to_serve import read_served_model
from baton_router.text.tokenization import Tokenizer
from baton_router.text.tokenizing_threads import TokenizingThreads
from baton_service.allocator import return_freed_memory
from baton_service.descriptors import DescriptorShares
from baton_service.keys import Keys
from baton_service.logs import configure_logging
from baton_service.loop_turns import LoopTurns
from baton_service.reachability import reachable_host
from baton_service.stop_signals import on_first_signal
from baton_service.tracing_start import start_tracing

EXIT_REFUSED: Final = 2
EXIT_INTERRUPTED: Final = 130
UNIX: Final = "unix:"
_BATON: Final = baton_pb2.DESCRIPTOR.services_by_name["Baton"].full_name
_SESSIONS: Final = session_pb2.DESCRIPTOR.services_by_name["Sessions"].full_name
_OPERATOR: Final = baton_pb2.DESCRIPTOR.services_by_name["Operator"].full_name
_GRPC_FLAG: Final = "address of --grpc-host and --grpc-port"
_STOP_WITHIN_S: Final = 1.0
_SWITCH_INTERVAL_S: Final = 0.0005
"""Time that a thread which reads a large body or prompt may keep the interpreter from the event loop.

Python's own 5 ms, at each of the loop's turns, would starve sessions and health under a few such threads."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """The addresses of a router, each `host:port`, or for HTTP `unix:` and a path."""

    grpc: str
    http: str


def run_router(
    settings: RouterSettings,
    on_bound: Callable[[Addresses], None] = lambda addresses: None,
    on_status: Callable[[FleetStatus], None] = lambda status: None,
    workers_fd: int | None = None,
) -> int:
    """Run one router until a signal to stop; a second signal ends it at once.

    `on_bound` gets the addresses once it listens, `on_status` the workers' status whenever it changes. Its
    launcher, if it has one, reports the workers' processes through the pipe `workers_fd`.

    Returns the process's exit code: 0 when it was told to stop, 2 when a setting or the model was refused,
    with the reason in the log, 130 when it was interrupted.
    """
    names = settings.member.names if settings.member else {}
    configure_logging("router", settings.log_format, settings.log_level, names=names)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    return_freed_memory()
    try:
        turns = LoopTurns()
        with asyncio.Runner(loop_factory=turns.make_loop) as runner:
            runner.run(_run_until_signal(settings, turns, on_bound, on_status, workers_fd))
    except BatonError as error:
        _log.error("%s", error)
        return EXIT_REFUSED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


class RouterServer:
    """A whole router. Start and stop it once, on one loop."""

    def __init__(
        self,
        settings: RouterSettings,
        on_status: Callable[[FleetStatus], None] = lambda status: None,
        turns: LoopTurns | None = None,
    ) -> None:
        self._settings = settings
        self._publish_status = on_status
        self.descriptors = DescriptorShares.divide(settings.http.connections.max_connections)
        """Connections that its ports may have open."""
        self._keys = Keys(settings.http.api_keys)
        self._server = GrpcServer(
            keys=self._keys,
            keyless=(_SESSIONS,) if settings.tls.grpc_authority else (),  # their certificates let workers in
            credentials=settings.tls.grpc_credentials(),
            max_connections=self.descriptors.max_grpc,
            max_message_bytes=settings.max_message_bytes,
            shares_ports=settings.member is not None,
        )
        self._picker = PickerServer(settings) if settings.picker_port is not None else None
        self._http = HttpServer()
        self._threads = TokenizingThreads()
        requests = RequestMetrics(settings.admission.slo)
        self._is_ready_changed = asyncio.Event()
        epoch = time.time_ns()
        router_id = f"{platform.node() or 'router'}-{epoch:x}"
        self._share = open_router_share(
            settings.redis,
            router_id,
            epoch,
            on_update=lambda update: self._router.notify(update),
            reservations=lambda: self._router.fleet.reservations(),
        )
        self._group = None if settings.member is None else self._make_group(settings.member, router_id)
        self._responses = open_response_store(settings.http.stored_responses, settings.redis)
        self._tracing = start_tracing(settings.tracing, service="baton-router", instance_id=router_id)
        self._spans = RequestSpans(self._tracing, settings.model_names[0])
        self._router = Router(
            core_config(settings, epoch),
            router_id=router_id,
            epoch=epoch,
            on_status=self._on_status,
            requests=requests,
            spans=self._spans,
            share=self._share if settings.redis.is_given or self._group is None else self._group,
            checks_transfers=settings.check_transfers,
            lines_beside=settings.http.batches.lines_beside,
            timings=SessionTimings(dead_after_s=settings.session_timeout_s),
        )
        shared = self._share.state if settings.redis.is_given else None
        self._metrics = RouterMetrics(settings.model_names[0], self._router.core, requests, shared, turns)
        self.grpc_port = 0
        """Port of gRPC clients and workers, once started."""

    def _make_group(self, member: Member, router_id: str) -> ProcessSharing:
        redis = self._settings.redis
        return ProcessSharing(
            member,
            router_id,
            on_update=lambda update: self._router.notify(update),
            reservations=lambda: () if redis.is_given else self._router.fleet.reservations(),
            take_spending=lambda: self._router.core.admission.take_unshared(),
            answer=lambda question: answer_process(question, self._service, self._metrics),
        )

    @property
    def router(self) -> Router:
        """The router that the protocols' services use."""
        return self._router

    @property
    def picker_port(self) -> int:
        """Port of gateways, once started; 0 where there is none."""
        return self._picker.port if self._picker is not None else 0

    @property
    def http_port(self) -> int:
        """Port of HTTP clients, once started."""
        return self._http.port

    async def start(self) -> None:
        """Take the ports, load the tokenizer, serve.

        Raises:
            InvalidConfigError: a port cannot be bound, or a setting cannot hold.
            InvalidModelError: the model's folder cannot be found or read.
        """
        settings = self._settings
        try:
            self._bind()
            address, http_address = self._advertised_address(), self._http_address()
            self._service = self._make_service()
            limits = settings.http.batches
            batches = self._batches = Batches(limits) if limits.folder else None
            state = AppState(
                ask_processes=None if self._group is None else self._group.ask,
                service=self._service,
                model=settings.shown_model or settings.model,
                settings=settings.http,
                own_hosts=settings.own_hosts,
                metrics=self._metrics,
                keys=self._keys,
                responses=self._responses,
                batches=batches,
            )
            app = make_app(state)
            if batches is not None:
                lines = LineCalls(state)
                batches.start(lines.ask, lines.defaults)
        except BatonError:
            await self._http.stop(0)
            await self._server.stop(0)
            await self._responses.close()
            raise
        await self._http.start(
            app,
            root_path=settings.http.root_path,
            limits=replace(settings.http.connections, max_connections=self.descriptors.max_http),
            tls=settings.tls.http_context(),
        )
        add_BatonServicer_to_server(BatonService(self._service, self._keys), self._server.server)  # type: ignore[no-untyped-call]
        add_SessionsServicer_to_server(self._router.sessions, self._server.server)  # type: ignore[no-untyped-call]
        await self._server.start(reflects=[_BATON, *self._add_operator_service()])
        if self._picker is not None:
            await self._picker.start(state, http_address, lambda: self._share.http_addresses)
        self._share.start(address, http_address, self._service.adapters)
        if self._group is not None:
            self._group.start(address, http_address, self._service.adapters)
        self._health = asyncio.create_task(self._report_health())
        self._metrics.sampler.start()

    def _bind(self) -> None:
        """Take the ports of HTTP, gRPC and gateways."""
        settings = self._settings
        is_shared = settings.member is not None
        if settings.member is not None and settings.member.is_first_start:
            for listener in listen(settings.host, settings.port):  # nobody else may share them
                listener.close()
            refuse_taken(settings.grpc_address, flag=_GRPC_FLAG)
        if settings.uds:
            self._http.bind_path(settings.uds)
        else:
            self._http.bind(settings.host, settings.port, is_shared=is_shared)
        self.grpc_port = self._server.bind(settings.grpc_address, flag=_GRPC_FLAG, is_shared=is_shared)
        if settings.member is not None and self._group is not None:
            own = settings.grpc_port + 1 + settings.member.index if settings.grpc_port else 0
            address = f"{settings.shown_grpc_host}:{own}"
            self._group.session_port = self._server.bind(address, flag=f"{_GRPC_FLAG} for workers")
            self._router.sessions.processes = self._group
        if self._picker is not None:
            self._picker.bind()

    def _add_operator_service(self) -> list[str]:
        """Serve operators over gRPC where that is allowed; returns the services that are added."""
        settings = self._settings.http
        if not settings.enable_operator_routes:
            return []
        if not settings.api_keys:
            _log.warning("operator routes are open to everybody: there is no --api-key")
        add_OperatorServicer_to_server(OperatorService(self._service), self._server.server)  # type: ignore[no-untyped-call]
        return [_OPERATOR]

    async def stop(self) -> None:
        """Refuse new requests, let running ones end within the shutdown timeout, end the rest."""
        self._health.cancel()
        with suppress(asyncio.CancelledError):
            await self._health
        await self._metrics.sampler.stop()
        await self._set_serving(False)
        if self._batches is not None:
            await self._batches.stop()
        await self._http.drain()
        within_s = self._settings.shutdown_timeout_s
        self._server.drain(within_s + _STOP_WITHIN_S)  # sessions with workers outlive the requests
        await self._service.drain(within_s)
        await self._share.stop()
        if self._group is not None:
            await self._group.stop()
        self._router.close("the router shuts down")
        await self._http.stop(_STOP_WITHIN_S)
        await self._responses.close()
        await self._server.stop(_STOP_WITHIN_S)
        if self._picker is not None:
            await self._picker.stop(_STOP_WITHIN_S)
        self._service.close()
        self._threads.close()
        await asyncio.to_thread(self._tracing.close)

    def _http_address(self) -> str:
        """Return the address at which gateways reach this router; empty where none does."""
        settings = self._settings
        if settings.uds or not (self._picker or settings.redis.is_given):
            return ""
        bound = f"tcp://{settings.shown_host}:{self.http_port}"
        towards = settings.redis.endpoint if settings.redis.is_given else ""
        return f"{reachable_host(bound, settings.advertise_host, towards)}:{self.http_port}"

    def _make_service(self) -> GenerationService:
        settings = self._settings
        limits = read_parsers(settings.http, settings.limits)
        template = read_chat_template(settings.chat_template) if settings.chat_template else None
        named = settings.tokenizer
        tokenizer = None if named is None else find_model_folder(named, field="tokenizer")
        model = with_generation_config(
            read_model_folder(find_model_folder(settings.model), tokenizer, settings.hf_overrides),
            settings.generation_config,
            settings.override_generation_config,
        )
        adapters = open_adapters(settings.model_names, settings.max_lora_rank, settings.lora_modules)
        self._router.serve(read_served_model(model, settings.limits.logits_processors))
        return GenerationService(
            settings.model_names,
            model,
            Tokenizer(model, template, settings.http.answers.chat),
            threads=self._threads,
            router=self._router,
            timeout_s=settings.request_timeout_s,
            limits=limits,
            spans=self._spans,
            shares_prefixes=settings.http.shared_prefix_cache,
            resume_tokens=ResumeTokens(settings.resume_secret),
            seed=settings.seed,
            log_requests=settings.log_requests,
            adapters=adapters,
        )

    def _advertised_address(self) -> str:
        """Return the address at which workers of other machines reach this router.

        Raises:
            InvalidConfigError: --advertise-host does not resolve, or no interface leads to Redis.
        """
        settings = self._settings
        if not settings.redis.is_given:
            return ""
        bound = f"tcp://{settings.grpc_address}"
        host = reachable_host(bound, settings.advertise_host, settings.redis.endpoint)
        return f"{host}:{self._group.session_port if self._group else self.grpc_port}"

    def _on_status(self, status: FleetStatus) -> None:
        self._is_ready_changed.set()
        self._publish_status(status)

    async def _report_health(self) -> None:
        while True:
            await self._is_ready_changed.wait()
            self._is_ready_changed.clear()
            await self._set_serving(self._router.is_ready)

    async def _set_serving(self, is_serving: bool) -> None:
        await self._server.set_serving(is_serving)
        if self._picker is not None:
            await self._picker.set_serving(is_serving)


async def _run_until_signal(
    settings: RouterSettings,
    turns: LoopTurns,
    on_bound: Callable[[Addresses], None],
    on_status: Callable[[FleetStatus], None],
    workers_fd: int | None,
) -> None:
    server = RouterServer(settings, on_status, turns)
    await server.start()
    following = asyncio.create_task(follow_launcher(workers_fd, server.router))
    try:
        http = f"{UNIX}{settings.uds}" if settings.uds else f"{settings.shown_host}:{server.http_port}"
        addresses = Addresses(grpc=f"{settings.shown_grpc_host}:{server.grpc_port}", http=http)
        on_bound(addresses)
        is_told_to_stop = asyncio.Event()
        with on_first_signal(is_told_to_stop.set):
            scheme = "https" if settings.tls.certfile else "http"
            url = addresses.http if settings.uds else f"{scheme}://{addresses.http}"
            where = f"{url}, gRPC at {addresses.grpc}"
            where += f", endpoint picker at port {server.picker_port}" if server.picker_port else ""
            gc.freeze()  # What is loaded by now stays; traversing all of it would stop the loop each time.
            _log.info("listening at %s; waiting for workers of %s", where, ", ".join(settings.model_names))
            log_shares(server.descriptors, settings.http.connections.max_connections)
            await is_told_to_stop.wait()
        _log.info("stopping")
    finally:
        following.cancel()
        await asyncio.wait([following])
        await server.stop()
