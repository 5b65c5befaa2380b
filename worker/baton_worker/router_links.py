"""The routers that a worker serves: those it was given, their processes, and those that it finds registered.

A router that is found is dialed until its lease is over and its session dead. One that was given is dialed
forever, and not a second time under the address that it registered. A router that refuses the worker costs it
no other router.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from baton_core.errors import IncompatibleWorkerError
from baton_core.sessions.router_messages import ToRouter
from baton_core.sessions.worker_info import WorkerInfo
from baton_service.redis.records import RouterRecord
from baton_worker.session_client import SessionClient


@dataclass(frozen=True, slots=True)
class _Link:
    client: SessionClient
    task: asyncio.Task[None]
    is_given: bool
    router: str = ""
    """Address of the router that has named it as one of its processes; empty for all others."""


class RouterLinks:
    """One `SessionClient` for each router. Make it on the loop that runs it.

    Args:
        given: addresses (`host:port`) to dial from the start.
        dial: makes the client of a router's address, which is that of one process or of any.
        finds_more: whether routers may be found besides those that are given.
    """

    def __init__(
        self, given: Sequence[str], dial: Callable[[str, bool], SessionClient], *, finds_more: bool = True
    ) -> None:
        self._given = given
        self._dial = dial
        self._finds_more = finds_more
        self._links: dict[str, _Link] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._rejection: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._has_looked = False
        self._is_closing = False

    async def run(self) -> None:
        """Keep sessions with the routers until cancelled.

        Raises:
            IncompatibleWorkerError: every router there may be has said that it will never take this worker.
        """
        for address in self._given:
            self._open(address, is_given=True)
        await self._rejection

    @property
    def refusals(self) -> list[str]:
        """The reasons why routers refuse this worker now, a line for each."""
        refusals = (link.client.refusal for link in self._links.values())
        return [refusal.message for refusal in refusals if refusal is not None]

    @property
    def unreachable(self) -> list[str]:
        """The reasons why routers cannot be reached now, a line for each."""
        return [link.client.unreachable for link in self._links.values() if link.client.unreachable]

    def on_refusal(self) -> None:
        """End with an error once there is no router left that may take this worker."""
        refusals = [one.client.refusal for one in self._links.values() if not one.client.is_forwarded]
        if self._finds_more or len(refusals) < len(set(self._given)) or self._rejection.done():
            return
        if all(refusal is not None and refusal.is_permanent for refusal in refusals):
            text = f"no router takes this worker: {'; '.join(self.refusals)}"
            self._rejection.set_exception(IncompatibleWorkerError(text, is_permanent=True))

    def on_processes(self, router: str, processes: Sequence[str]) -> None:
        """Serve the processes of a router, which it names again and again; one that is gone is given up."""
        if self._is_closing:
            return
        for address in set(processes) - self._links.keys():
            self._open(address, is_given=False, router=router)
        for address, link in list(self._links.items()):
            if link.router == router and address not in processes and not link.client.has_session:
                self._end(self._links.pop(address))

    def on_found(self, routers: Sequence[RouterRecord]) -> None:
        """Serve the routers that are registered now; the first time only where none was given.

        By the next time those that were given have said their names, and are not taken for others.
        """
        is_early = self._given and not self._has_looked
        self._has_looked = True
        if self._is_closing or is_early:
            return
        given = {link.client.router_name for link in self._links.values() if link.is_given or link.router}
        addresses = {router.address for router in routers if router.router_id not in given}
        for address in addresses - self._links.keys():
            self._open(address, is_given=False)
        twice = {router.address for router in routers} - addresses
        for address, link in list(self._links.items()):
            is_gone = address not in addresses and not link.client.has_session
            if not (link.is_given or link.router) and (is_gone or address in twice):
                self._end(self._links.pop(address))

    def send(self, router_id: str, message: ToRouter) -> None:
        """Queue a message for the router of that session; see `SessionClient.send`."""
        for link in self._links.values():
            link.client.send(router_id, message)

    def register_as(self, info: WorkerInfo) -> None:
        """Have sessions that begin from here on register this."""
        for link in self._links.values():
            link.client.info = info

    async def close(self) -> None:
        """Say farewell to all routers."""
        self._is_closing = True
        for link in self._links.values():
            self._end(link)
        self._links.clear()
        await asyncio.gather(*self._ending)

    def _open(self, address: str, *, is_given: bool, router: str = "") -> None:
        client = self._dial(address, not is_given)
        task = asyncio.create_task(client.run())
        task.add_done_callback(self._on_done)
        self._links[address] = _Link(client, task, is_given, router)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._rejection.done():
            self._rejection.set_exception(error)

    def _end(self, link: _Link) -> None:
        task = asyncio.create_task(_farewell(link))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


async def _farewell(link: _Link) -> None:
    await link.client.close()
    await asyncio.wait({link.task})
