"""One router process: its port, its model, its services; from start to SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import logging
import platform
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from baton_core.errors import BatonError
from baton_core.placement import PlacementConfig
from baton_core.request_flow import FlowLimits
from baton_core.router_core import RouterConfig
from baton_core.session import DEFAULT_TIMINGS, SessionTimings
from baton_proto.v1 import baton_pb2
from baton_proto.v1.baton_pb2_grpc import add_BatonServicer_to_server
from baton_proto.v1.session_pb2_grpc import add_SessionsServicer_to_server
from baton_router.model_folder import find_model_folder, read_model_folder
from baton_router.router import Router
from baton_router.service import BatonService
from baton_router.settings import RouterSettings
from baton_router.tokenization import Tokenizer
from baton_router.tokenizing_threads import TokenizingThreads
from baton_service.grpc_server import GrpcServer
from baton_service.logs import configure_logging

EXIT_REFUSED: Final = 2
EXIT_INTERRUPTED: Final = 130
_BATON: Final = baton_pb2.DESCRIPTOR.services_by_name["Baton"].full_name
_STOP_WITHIN_S: Final = 1.0
_log = logging.getLogger(__name__)


def run_router(settings: RouterSettings, on_bound: Callable[[str], None] = lambda address: None) -> int:
    """Run one router until SIGTERM or SIGINT; a second signal ends it at once.

    `on_bound` is told where it listens (`host:port`) once it does.

    Returns the process's exit code: 0 when it was told to stop, 2 when a setting or the model was refused,
    with the reason in the log, 130 when it was interrupted.
    """
    configure_logging("router", settings.log_format, settings.log_level)
    try:
        asyncio.run(_run_until_signal(settings, on_bound))
    except BatonError as error:
        _log.error("%s", error)
        return EXIT_REFUSED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


class RouterServer:
    """The parts of a router, put together. Start and stop it once, on one loop."""

    def __init__(self, settings: RouterSettings, timings: SessionTimings = DEFAULT_TIMINGS) -> None:
        self._settings = settings
        self._server = GrpcServer()
        self._threads = TokenizingThreads()
        self._is_ready_changed = asyncio.Event()
        epoch = time.time_ns()
        self._router = Router(
            _core_config(settings, epoch),
            router_id=platform.node() or "router",
            epoch=epoch,
            on_ready_changed=self._is_ready_changed.set,
            timings=timings,
        )
        self.port = 0
        """Where it listens, once started."""

    async def start(self) -> None:
        """Take the port, load the tokenizer, serve.

        Raises:
            InvalidConfigError: the port cannot be bound.
            InvalidModelError: the model's folder cannot be found or read.
        """
        settings = self._settings
        try:
            self.port = self._server.bind(settings.address, flag="address of --host and --port")
            model = read_model_folder(find_model_folder(settings.model))
            tokenizer = Tokenizer(model)
        except BatonError:
            await self._server.stop(0)
            raise
        self._service = BatonService(
            settings.model_names,
            model,
            tokenizer,
            threads=self._threads,
            router=self._router,
            timeout_s=settings.request_timeout_s,
        )
        add_BatonServicer_to_server(self._service, self._server.server)  # type: ignore[no-untyped-call]
        add_SessionsServicer_to_server(self._router.sessions, self._server.server)  # type: ignore[no-untyped-call]
        await self._server.start(reflects=(_BATON,))
        self._health = asyncio.create_task(self._report_health())

    async def stop(self) -> None:
        """Refuse new requests, let running ones end within the shutdown timeout, end the rest."""
        self._health.cancel()
        with suppress(asyncio.CancelledError):
            await self._health
        await self._server.set_serving(False)
        await self._service.drain(self._settings.shutdown_timeout_s)
        self._router.close("the router shuts down")
        await self._server.stop(_STOP_WITHIN_S)
        self._threads.close()

    async def _report_health(self) -> None:
        while True:
            await self._is_ready_changed.wait()
            self._is_ready_changed.clear()
            await self._server.set_serving(self._router.is_ready)


def _core_config(settings: RouterSettings, epoch: int) -> RouterConfig:
    placement = PlacementConfig(split=settings.split, min_split_tokens=settings.min_split_tokens)
    limits = FlowLimits(router_name=f"{epoch:x}", placement=placement, timeout_s=settings.request_timeout_s)
    return RouterConfig(limits=limits)


async def _run_until_signal(settings: RouterSettings, on_bound: Callable[[str], None]) -> None:
    server = RouterServer(settings)
    await server.start()
    try:
        on_bound(f"{settings.host}:{server.port}")
        with _signals() as is_told_to_stop:
            names = ", ".join(settings.model_names)
            _log.info("serving %s on %s, port %d", names, settings.host, server.port)
            await is_told_to_stop.wait()
        _log.info("stopping")
    finally:
        await server.stop()


@contextmanager
def _signals() -> Iterator[asyncio.Event]:
    """An event that the first SIGTERM or SIGINT sets; outside the block they end the process at once."""
    loop = asyncio.get_running_loop()
    is_told_to_stop = asyncio.Event()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, is_told_to_stop.set)
    try:
        yield is_told_to_stop
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
