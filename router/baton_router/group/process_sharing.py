"""One process of a router tells the others its load and its tenants' spending, and hears theirs.

Each listens at a Unix socket in the folder of its group, which only their user may enter, and follows every
other. A process that is silent has no load any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from baton_core.load_reservation import LoadReservation
from baton_core.requests.adapter import Adapter
from baton_core.requests.spending import Spending
from baton_core.sessions.worker_info import WorkerInfo
from baton_router.core.router_events import PeerLoad, PeerSpending
from baton_router.group.frames import FOLLOW, Frame, encode_frame, read_frame
from baton_router.group.member import Member
from baton_router.redis.shared_adapters import SharedAdapters
from baton_service.redis.shared_state import SharedState
from baton_service.unix_listener import listen_at_path

PUBLISH_EVERY_S: Final = 0.02
"""Shortest time between two frames to a process."""
BEAT_S: Final = 0.5
"""Longest time between two frames."""
DEAD_AFTER_S: Final = 2.0
"""Silence after which a process has no load any more, or gives no answer."""
_RETRY_S: Final = 0.2
_log = logging.getLogger(__name__)


class ProcessSharing:
    """A `RouterSharing` between the processes of one router. Make it on its loop.

    Args:
        on_update: called on the loop with what another process has reserved and spent.
        reservations: returns the load that this process has reserved.
        take_spending: returns what tenants have spent here since the last call.
        answer: returns this process's answer to a question of one line; empty where it has none.
    """

    has_prefix_updates = False
    http_addresses: Sequence[str] = ()

    def __init__(
        self,
        member: Member,
        router_id: str,
        *,
        on_update: Callable[[PeerLoad | PeerSpending], None],
        reservations: Callable[[], Sequence[LoadReservation]],
        take_spending: Callable[[], Sequence[Spending]],
        answer: Callable[[bytes], bytes],
    ) -> None:
        self.state = SharedState()
        self.session_port = 0
        """Port at which workers reach this process; set before `start`."""
        self._member = member
        self._router_id = router_id
        self._on_update = on_update
        self._reservations = reservations
        self._take_spending = take_spending
        self._answer_question = answer
        self._heard: dict[int, Frame] = {}
        """The last frame of each process that is there."""
        self._followers: dict[asyncio.Event, dict[str, Spending]] = {}
        """The spending that each follower of this process is still to hear; its event is set by news."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_first(self) -> bool:
        """True for the first of the processes that are there: it acts for all."""
        return all(index > self._member.index for index in self._heard)

    @property
    def session_ports(self) -> tuple[int, ...]:
        """Ports at which workers reach the processes that are there, one each."""
        return tuple(sorted([self.session_port, *(frame.session_port for frame in self._heard.values())]))

    def start(self, address: str, http_address: str, adapters: SharedAdapters) -> None:
        """Listen, and follow the others."""
        self._begin(self._listen())
        for index in self._member.others:
            self._begin(self._follow(index))

    def on_joined(self, info: WorkerInfo) -> None: ...

    def on_left(self, worker_id: str) -> None: ...

    def on_load_changed(self) -> None:
        """Tell the others soon."""
        for news in self._followers:
            news.set()

    async def put_adapter(self, adapter: Adapter) -> None: ...

    async def remove_adapter(self, name: str) -> None: ...

    async def stop(self) -> None:
        """Tell and hear no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def ask(self, question: bytes) -> Mapping[int, bytes]:
        """Return the answers of all processes that are there and have one, by their numbers."""
        others = self._member.others
        answers = await asyncio.gather(*(self._ask_one(index, question) for index in others))
        found = {
            self._member.index: self._answer_question(question),
            **dict(zip(others, answers, strict=True)),
        }
        return {index: answer for index, answer in sorted(found.items()) if answer}

    async def _ask_one(self, index: int, question: bytes) -> bytes:
        try:
            async with asyncio.timeout(DEAD_AFTER_S):
                reader, writer = await asyncio.open_unix_connection(self._member.socket(index))
                try:
                    writer.write(question + b"\n")
                    return await reader.read(-1)
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return b""

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen(self) -> None:
        listener = listen_at_path(str(self._member.socket(self._member.index)))
        server = await asyncio.start_unix_server(
            lambda *ends: self._begin(self._answer(*ends)), sock=listener
        )
        async with server:
            await server.serve_forever()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, TimeoutError):
                line = await reader.readline()
                if line == FOLLOW:
                    await self._publish(writer)
                else:
                    writer.write(self._answer_question(line.rstrip(b"\n")))
                    await writer.drain()
        finally:
            writer.close()

    async def _publish(self, writer: asyncio.StreamWriter) -> None:
        news = asyncio.Event()
        pending = self._followers[news] = {}
        try:
            while True:
                news.clear()
                for spent in self._take_spending():
                    for others in self._followers.values():
                        others[spent.tenant] = spent.plus(others.get(spent.tenant))
                frame = Frame(
                    router_id=self._router_id,
                    session_port=self.session_port,
                    reservations=tuple(self._reservations()),
                    spending=tuple(pending.values()),
                )
                pending.clear()
                writer.write(encode_frame(frame))
                async with asyncio.timeout(DEAD_AFTER_S):
                    await writer.drain()
                await asyncio.sleep(PUBLISH_EVERY_S)
                with suppress(TimeoutError):
                    async with asyncio.timeout(BEAT_S):
                        await news.wait()
        finally:
            del self._followers[news]

    async def _follow(self, index: int) -> None:
        """Hear a process for as long as this one runs, each time that it is there."""
        while True:
            try:
                await self._hear(index)
            except (OSError, TimeoutError, asyncio.IncompleteReadError, msgspec.MsgspecError) as error:
                _log.debug("process %d of this router is not heard: %r", index, error)
            finally:
                if (frame := self._heard.pop(index, None)) is not None:
                    self._on_update(PeerLoad(router_id=frame.router_id, reservations=()))
            await asyncio.sleep(_RETRY_S)

    async def _hear(self, index: int) -> None:
        reader, writer = await asyncio.open_unix_connection(self._member.socket(index))
        try:
            writer.write(FOLLOW)
            while True:
                async with asyncio.timeout(DEAD_AFTER_S):
                    frame = await read_frame(reader)
                before = self._heard.get(index)
                self._heard[index] = frame
                if before is None or frame.reservations != before.reservations:
                    self._on_update(PeerLoad(router_id=frame.router_id, reservations=frame.reservations))
                if frame.spending:
                    self._on_update(PeerSpending(spending=frame.spending))
        finally:
            writer.close()
