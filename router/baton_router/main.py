"""One router process: its ports, its model, its services; from start to SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import logging
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from baton_core.errors import BatonError
from baton_core.routing.flow_limits import FlowLimits
from baton_core.routing.moves import MoveLimits
from baton_core.routing.placement import PlacementConfig
from baton_core.routing.role_balance import BalanceConfig
from baton_core.routing.role_pressure import Limits
from baton_core.routing.router_core import RouterConfig
from baton_core.sessions.session import SessionTimings
from baton_proto.v1 import baton_pb2, session_pb2
from baton_proto.v1.baton_pb2_grpc import add_BatonServicer_to_server, add_OperatorServicer_to_server
from baton_proto.v1.session_pb2_grpc import add_SessionsServicer_to_server
from baton_router.fleet_status import FleetStatus
from baton_router.front_door import FrontDoor
from baton_router.generation_defaults import with_generation_config
from baton_router.http.app import make_app
from baton_router.http.parsers import read_parsers
from baton_router.http.server import HttpServer
from baton_router.http.site import make_site
from baton_router.metrics.request_metrics import RequestMetrics
from baton_router.metrics.router_metrics import RouterMetrics
from baton_router.model_folder import find_model_folder, read_chat_template, read_model_folder
from baton_router.operator_service import OperatorService
from baton_router.request_spans import RequestSpans
from baton_router.resume_tokens import ResumeTokens
from baton_router.router import Router
from baton_router.service import BatonService
from baton_router.settings import RouterSettings
from baton_router.tokenization import Tokenizer
from baton_router.tokenizing_threads import TokenizingThreads
from baton_service.grpc_server import GrpcServer
from baton_service.keys import Keys
from baton_service.logs import configure_logging
from baton_service.reachability import reachable_host
from baton_service.shared_state.shares import open_router_share
from baton_service.stop_signals import on_first_signal
from baton_service.tracing import start_tracing

EXIT_REFUSED: Final = 2
EXIT_INTERRUPTED: Final = 130
_BATON: Final = baton_pb2.DESCRIPTOR.services_by_name["Baton"].full_name
_SESSIONS: Final = session_pb2.DESCRIPTOR.services_by_name["Sessions"].full_name
_OPERATOR: Final = baton_pb2.DESCRIPTOR.services_by_name["Operator"].full_name
_STOP_WITHIN_S: Final = 1.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where a router listens, each `host:port`."""

    grpc: str
    http: str


def run_router(
    settings: RouterSettings,
    on_bound: Callable[[Addresses], None] = lambda addresses: None,
    on_status: Callable[[FleetStatus], None] = lambda status: None,
) -> int:
    """Run one router until SIGTERM or SIGINT; a second signal ends it at once.

    `on_bound` is told where it listens once it does, `on_status` of its workers whenever they change.

    Returns the process's exit code: 0 when it was told to stop, 2 when a setting or the model was refused,
    with the reason in the log, 130 when it was interrupted.
    """
    configure_logging("router", settings.log_format, settings.log_level)
    try:
        asyncio.run(_run_until_signal(settings, on_bound, on_status))
    except BatonError as error:
        _log.error("%s", error)
        return EXIT_REFUSED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


class RouterServer:
    """The parts of a router, put together. Start and stop it once, on one loop."""

    def __init__(
        self, settings: RouterSettings, on_status: Callable[[FleetStatus], None] = lambda status: None
    ) -> None:
        self._settings = settings
        self._tell_status = on_status
        self._keys = Keys(settings.http.api_keys)
        self._server = GrpcServer(
            keys=self._keys,
            keyless=(_SESSIONS,) if settings.tls.grpc_authority else (),  # their certificates let workers in
            credentials=settings.tls.grpc_credentials(),
        )
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
            tell=lambda told: self._router.tell(told),
            charges=lambda: self._router.fleet.charges(),
        )
        self._tracing = start_tracing(settings.tracing, service="baton-router", instance_id=router_id)
        self._spans = RequestSpans(self._tracing, settings.model_names[0])
        self._router = Router(
            _core_config(settings, epoch),
            router_id=router_id,
            epoch=epoch,
            on_status=self._on_status,
            requests=requests,
            spans=self._spans,
            share=self._share,
            checks_transfers=settings.check_transfers,
            timings=SessionTimings(dead_after_s=settings.session_timeout_s),
        )
        shared = self._share.state if settings.redis.is_given else None
        self._metrics = RouterMetrics(settings.model_names[0], self._router.core, requests, shared)
        self.grpc_port = 0
        """Where gRPC clients and workers find it, once started."""

    @property
    def http_port(self) -> int:
        """Where HTTP clients find it, once started."""
        return self._http.port

    async def start(self) -> None:
        """Take the ports, load the tokenizer, serve.

        Raises:
            InvalidConfigError: a port cannot be bound, or a setting cannot hold.
            InvalidModelError: the model's folder cannot be found or read.
        """
        settings = self._settings
        try:
            self._http.bind(settings.host, settings.port)
            self.grpc_port = self._server.bind(
                settings.grpc_address, flag="address of --host and --grpc-port"
            )
            address = self._advertised_address()
            self._front_door = self._open_door()
        except BatonError:
            await self._http.stop(0)
            await self._server.stop(0)
            raise
        site = make_site(self._front_door, settings.http, self._metrics, self._keys)
        await self._http.start(
            make_app(site),
            root_path=settings.http.root_path,
            limits=settings.http.connections,
            tls=settings.tls.http_context(),
        )
        add_BatonServicer_to_server(BatonService(self._front_door, self._keys), self._server.server)  # type: ignore[no-untyped-call]
        add_SessionsServicer_to_server(self._router.sessions, self._server.server)  # type: ignore[no-untyped-call]
        reflects = [_BATON]
        if settings.http.enable_operator_routes:
            if not settings.http.api_keys:
                _log.warning("operator routes are open to everybody: there is no --api-key")
            operator = OperatorService(self._front_door)
            add_OperatorServicer_to_server(operator, self._server.server)  # type: ignore[no-untyped-call]
            reflects.append(_OPERATOR)
        await self._server.start(reflects=reflects)
        self._share.start(address)
        self._health = asyncio.create_task(self._report_health())
        self._metrics.sampler.start()

    async def stop(self) -> None:
        """Refuse new requests, let running ones end within the shutdown timeout, end the rest."""
        self._health.cancel()
        with suppress(asyncio.CancelledError):
            await self._health
        await self._metrics.sampler.stop()
        await self._server.set_serving(False)
        await self._front_door.drain(self._settings.shutdown_timeout_s)
        await self._share.stop()
        self._router.close("the router shuts down")
        await self._http.stop(_STOP_WITHIN_S)
        await self._server.stop(_STOP_WITHIN_S)
        self._threads.close()
        await asyncio.to_thread(self._tracing.close)

    def _open_door(self) -> FrontDoor:
        settings = self._settings
        limits = read_parsers(settings.http, settings.limits)
        template = read_chat_template(settings.chat_template) if settings.chat_template else None
        model = with_generation_config(
            read_model_folder(
                find_model_folder(settings.model),
                None if settings.tokenizer is None else find_model_folder(settings.tokenizer),
            ),
            settings.generation_config,
            settings.override_generation_config,
        )
        return FrontDoor(
            settings.model_names,
            model,
            Tokenizer(model, template),
            threads=self._threads,
            router=self._router,
            timeout_s=settings.request_timeout_s,
            limits=limits,
            spans=self._spans,
            shares_prefixes=settings.http.shared_prefix_cache,
            resume_tokens=ResumeTokens(settings.resume_secret),
        )

    def _advertised_address(self) -> str:
        """Where workers of other machines reach this router.

        Raises:
            InvalidConfigError: --advertise-host does not resolve, or no interface leads to Redis.
        """
        settings = self._settings
        if not settings.redis.is_given:
            return ""
        bound = f"tcp://{settings.grpc_address}"
        host = reachable_host(bound, settings.advertise_host, settings.redis.endpoint)
        return f"{host}:{self.grpc_port}"

    def _on_status(self, status: FleetStatus) -> None:
        self._is_ready_changed.set()
        self._tell_status(status)

    async def _report_health(self) -> None:
        while True:
            await self._is_ready_changed.wait()
            self._is_ready_changed.clear()
            await self._server.set_serving(self._router.is_ready)


def _core_config(settings: RouterSettings, epoch: int) -> RouterConfig:
    placement = PlacementConfig(
        policy=settings.routing_policy, split=settings.split, min_split_tokens=settings.min_split_tokens
    )
    limits = FlowLimits(
        router_name=f"{epoch:x}",
        placement=placement,
        timeout_s=settings.request_timeout_s,
        queue_s=settings.admission.queue_timeout_s,
        homeless_s=settings.move_timeout_s,
        moves=MoveLimits(wait_s=settings.move_timeout_s),
    )
    step_s = settings.admission.slo.tpot_s
    return RouterConfig(
        limits=limits,
        admission=settings.admission.config(settings.http.api_keys),
        adaptive_roles=BalanceConfig(limits=Limits(step_s=step_s)) if settings.adaptive_roles else None,
    )


async def _run_until_signal(
    settings: RouterSettings,
    on_bound: Callable[[Addresses], None],
    on_status: Callable[[FleetStatus], None],
) -> None:
    server = RouterServer(settings, on_status)
    await server.start()
    try:
        host = settings.shown_host
        addresses = Addresses(grpc=f"{host}:{server.grpc_port}", http=f"{host}:{server.http_port}")
        on_bound(addresses)
        is_told_to_stop = asyncio.Event()
        with on_first_signal(is_told_to_stop.set):
            names = ", ".join(settings.model_names)
            scheme = "https" if settings.tls.certfile else "http"
            where = f"{scheme}://{addresses.http}, gRPC at {addresses.grpc}"
            _log.info("listening at %s; workers of %s are awaited", where, names)
            await is_told_to_stop.wait()
        _log.info("stopping")
    finally:
        await server.stop()
