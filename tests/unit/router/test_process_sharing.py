"""The processes of a router hear each other, and leave nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from baton_core.load_reservation import LoadReservation
from baton_core.requests.adapter import Adapter
from baton_router.core.router_events import PeerLoad, PeerSpending
from baton_router.group.member import Member
from baton_router.group.process_sharing import ProcessSharing
from baton_router.redis.shared_adapters import SharedAdapters

WITHIN_S = 20.0


class NoAdapters(SharedAdapters):
    loaded = ()

    def follow(self, loaded: Sequence[Adapter]) -> None:
        raise AssertionError("nobody loads adapters here")


async def test_nothing_of_processes_that_hear_each_other_is_left_once_they_have_stopped(
    tmp_path: Path,
) -> None:
    heard = [asyncio.Event(), asyncio.Event()]

    def process(index: int) -> ProcessSharing:
        def on_update(update: PeerLoad | PeerSpending) -> None:
            heard[index].set()

        reservations: list[LoadReservation] = []
        return ProcessSharing(
            Member(index=index, size=2, folder=tmp_path),
            f"router-{index}",
            on_update=on_update,
            reservations=lambda: reservations,
            take_spending=tuple,
            answer=lambda question: b"",
        )

    processes = [process(index) for index in range(2)]
    for one in processes:
        one.start("", "", NoAdapters())
    async with asyncio.timeout(WITHIN_S):
        for event in heard:
            await event.wait()
    await asyncio.gather(*(one.stop() for one in processes))
    assert asyncio.all_tasks() == {asyncio.current_task()}
