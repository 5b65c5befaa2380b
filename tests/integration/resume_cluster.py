"""Two routers over the same workers: what a stream began at one goes on at the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from baton_core.sessions.worker_info import Role
from baton_router.main import RouterServer
from tests.integration.router_cluster import serving
from tests.integration.scripted_worker import until
from tests.integration.worker_cluster import working


@asynccontextmanager
async def two_routers() -> AsyncIterator[tuple[RouterServer, RouterServer]]:
    """The first splits every request over both workers, the second gives short ones to one of them."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(serving(split="always"))
        second = await stack.enter_async_context(serving(split="auto"))
        for role in (Role.PREFILL, Role.DECODE):
            await stack.enter_async_context(working(role, first.grpc_port, also=(second.grpc_port,)))
        await until(lambda: all(len(fleet_of(server)) == 2 for server in (first, second)))
        yield first, second


def fleet_of(server: RouterServer) -> set[str]:
    """Names of the workers that a router has."""
    return {info.worker_id for info, _ in server._router.fleet.workers()}
