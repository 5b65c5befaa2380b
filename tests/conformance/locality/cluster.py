"""Routers and workers that tell each other what is cached: over sessions, or through a real Redis.

Cores, sessions and shares are real; what a worker has cached is put into its cache by the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import blake2b
from pathlib import Path

from baton_core.kv_events.cache_events import BlockContent
from baton_core.load_reservation import LoadReservation
from baton_core.sessions.session import SessionTimings
from baton_core.sessions.worker_info import Role, WorkerLoad
from baton_core.worker.worker_events import CacheChanged, RouterJoined, RouterLost, SendToRouter, WorkerEvent
from baton_proto.v1.session_pb2_grpc import add_SessionsServicer_to_server
from baton_router.core.flow.router_core import RouterConfig
from baton_router.core.router_events import PeerLoad, PrefixUpdate
from baton_router.grpc.server import GrpcServer
from baton_router.process.router import Router
from baton_router.redis.router_sharing import open_router_share
from baton_router.requests.served_adapters import ServedAdapters
from baton_service.redis.redis_settings import RedisSettings
from baton_worker.core.worker_core import WorkerCore
from baton_worker.redis.worker_sharing import open_worker_share
from baton_worker.router_links import RouterLinks
from baton_worker.session_client import RouterCallbacks, SessionClient
from tests.builders import BLOCK_SIZE, make_worker_config, make_worker_info
from tests.integration.scripted_worker import until
from tests.integration.tcp_proxy import Proxy
from tests.redis_server import RedisServer, redis_server

CONVERGES_WITHIN_S = 20.0
TIMINGS = SessionTimings(heartbeat_s=0.1, dead_after_s=1.5, resume_within_s=0.2)


def block(number: int) -> bytes:
    """A hash as caches have them."""
    return blake2b(number.to_bytes(8, "little"), digest_size=16).digest()


class CachingWorker:
    """A worker with `blocks` in its cache, which computes nothing."""

    def __init__(self, name: str, epoch: int, redis: RedisSettings, given: Collection[str]) -> None:
        self.name = name
        self.blocks: set[int] = set()
        self.info = make_worker_info(name, Role.MIXED, epoch=epoch)
        self.share = open_worker_share(redis, self.info)
        self._core = WorkerCore(make_worker_config(name, epoch=epoch, publishes_cache=True))
        self._links = RouterLinks(tuple(given), self._dial)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[CachingWorker]:
        tasks = (
            asyncio.create_task(self._links.run()),
            asyncio.create_task(self.share.run(self._links.on_found)),
        )
        try:
            yield self
        finally:
            await self._links.close()
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends

    def store(self, *numbers: int) -> None:
        for number in numbers:
            content = BlockContent(index=0, parent=None, token_ids=(number % 1000,) * BLOCK_SIZE)
            self._core.pool.cache.insert(number, block(number), content)
        self.blocks |= {*numbers}
        self._tell()

    def remove(self, *numbers: int) -> None:
        for number in numbers:
            self._core.pool.cache.remove(number)
        self.blocks -= {*numbers}
        self._tell()

    def clear(self) -> None:
        for number in self.blocks:
            self._core.pool.cache.remove(number)
        self._core.pool.cache.mark_cleared()
        self.blocks.clear()
        self._tell()

    def _tell(self) -> None:
        """Let the core notice; a router that nobody knows is as good an event as any."""
        self._on_event(RouterLost(router_id="nobody"))

    def _on_event(self, event: WorkerEvent) -> None:
        for effect in self._core.on_event(0.0, event):
            match effect:
                case SendToRouter(router_id=router_id, message=message):
                    self._links.send(router_id, message)
                case CacheChanged():
                    self.share.on_changed(effect)

    def _dial(self, address: str, names_process: bool) -> SessionClient:
        callbacks = RouterCallbacks(
            on_joined=self._on_joined,
            on_message=lambda router_id, message: None,
            on_lost=lambda router_id: self._on_event(RouterLost(router_id=router_id)),
        )
        return SessionClient(address, self.info, WorkerLoad, callbacks, TIMINGS, names_process=names_process)

    def _on_joined(self, router_id: str, has_locality: bool) -> None:
        is_written = has_locality and self.share.has_locality
        self._on_event(RouterJoined(router_id=router_id, has_locality=is_written))


class ListeningRouter:
    """A router without clients."""

    def __init__(self, name: str, redis: RedisSettings) -> None:
        self._given_by_others: dict[str, tuple[LoadReservation, ...]] = {}
        self.share = open_router_share(
            redis, name, 1, on_update=self._hear, reservations=lambda: self.router.fleet.reservations()
        )
        self.router = Router(
            RouterConfig(),
            router_id=name,
            epoch=1,
            on_status=lambda status: None,
            share=self.share,
            timings=TIMINGS,
        )
        self._server = GrpcServer()
        add_SessionsServicer_to_server(self.router.sessions, self._server.server)  # type: ignore[no-untyped-call]
        self.port = self._server.bind("127.0.0.1:0", flag="--grpc-port")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ListeningRouter]:
        await self._server.start()
        self.share.start(f"127.0.0.1:{self.port}", "", ServedAdapters())
        try:
            yield self
        finally:
            await self.share.stop()
            self.router.close("the test is over")
            await self._server.stop(0.5)

    def heard(self, router_id: str) -> tuple[LoadReservation, ...]:
        """Return the load that the router gave, as this one heard of it."""
        return self._given_by_others.get(router_id, ())

    def _hear(self, told: PrefixUpdate | PeerLoad) -> None:
        if isinstance(told, PeerLoad):
            self._given_by_others[told.router_id] = told.reservations
        self.router.notify(told)

    @property
    def workers(self) -> set[str]:
        return {info.worker_id for info, _ in self.router.fleet.workers()}

    def holds(self, worker: CachingWorker, numbers: Iterable[int]) -> set[int]:
        """Return the blocks that this router believes the worker to have."""
        return {number for number in numbers if self._believes(worker.name, block(number))}

    def knows(self, worker: CachingWorker, numbers: Collection[int]) -> bool:
        """Return whether the router's view of these blocks of a worker is the truth."""
        return worker.name in self.workers and self.holds(worker, numbers) == worker.blocks & {*numbers}

    def _believes(self, worker_id: str, block_hash: bytes) -> bool:
        views = self.router.fleet.views(BLOCK_SIZE, [block_hash])
        return any(view.worker_id == worker_id and view.num_cached_tokens for view in views)


class LocalityCluster:
    """Without `redis` workers are given the routers' addresses, with it they find them."""

    def __init__(self, stack: AsyncExitStack, redis: RedisServer | None) -> None:
        self.redis = redis
        self._stack = stack
        self._proxies: list[Proxy] = []
        self._addresses: list[str] = []

    async def router(self, name: str, *, is_cut_off: bool = False) -> ListeningRouter:
        """Start a router; `cut` cuts it off from what workers tell, or it is from the start."""
        settings = RedisSettings()
        if self.redis is not None:
            port = await self._proxied(self.redis.port, is_cut_off)
            settings = RedisSettings(url=f"redis://127.0.0.1:{port}", namespace="test")
        router = await self._stack.enter_async_context(ListeningRouter(name, settings).running())
        if self.redis is None:
            self._addresses.append(f"127.0.0.1:{await self._proxied(router.port, is_cut_off)}")
        elif not is_cut_off:
            await until(lambda: router.share.state.is_up)
        return router

    async def worker(self, name: str, epoch: int = 1, stack: AsyncExitStack | None = None) -> CachingWorker:
        """Start a worker that serves the routers there are, in `stack` if it is to end before the cluster."""
        settings = RedisSettings() if self.redis is None else self.redis.settings()
        worker = CachingWorker(name, epoch, settings, self._addresses)
        return await (stack or self._stack).enter_async_context(worker.running())

    def cut(self) -> None:
        """Break what leads from workers to routers, until `mend`."""
        for proxy in self._proxies:
            proxy.is_refusing = True
            proxy.cut()

    def mend(self) -> None:
        for proxy in self._proxies:
            proxy.is_refusing = False

    async def _proxied(self, port: int, is_cut_off: bool) -> int:
        proxy = Proxy(port)
        proxy.is_refusing = is_cut_off
        self._proxies.append(proxy)
        return await self._stack.enter_async_context(proxy)


async def converged(router: ListeningRouter, *workers: CachingWorker, numbers: Collection[int]) -> None:
    """Wait until a router believes the truth about these blocks of the workers.

    Raises:
        TimeoutError: it does not within the time that it has.
    """
    await until(lambda: all(router.knows(worker, numbers) for worker in workers), CONVERGES_WITHIN_S)


@asynccontextmanager
async def locality_cluster(kind: str, folder: Path) -> AsyncIterator[LocalityCluster]:
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(redis_server(folder)) if kind == "redis" else None
        yield LocalityCluster(stack, redis)
