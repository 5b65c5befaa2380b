from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from baton.worker import kv_transfer
from baton.worker.first_pulls import FirstPulls
from baton.worker.kv_transfer import KVTransfers
from baton_core.worker.worker_events import Seal, SealFailed, WorkerEvent
from baton_kv.in_process import InProcessConnector, InProcessRegistry
from tests.builders import make_kv_spec


class StuckConnector(InProcessConnector):
    """Its checksums take until a test lets them go."""

    gate = threading.Event()

    def seal(self, block_ids: Sequence[int]) -> tuple[int | None, ...]:
        assert self.gate.wait(10.0)
        return tuple(block_ids)


def test_checksums_that_do_not_come_are_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_transfer, "_SEAL_WITHIN_S", 0.05)

    async def scenario() -> None:
        events: asyncio.Queue[WorkerEvent] = asyncio.Queue()
        connector = StuckConnector(make_kv_spec(), 1, registry=InProcessRegistry())
        connector.allocate(4)
        transfers = KVTransfers(connector, events.put_nowait, FirstPulls({}))
        transfers.start()
        transfers.execute(Seal(request_id="r", indices=(0, 1), block_ids=(2, 3)))
        event = await asyncio.wait_for(events.get(), 5.0)
        text = "no checksums of 2 blocks within 0.05 s"
        assert event == SealFailed(request_id="r", message=text)
        connector.gate.set()
        await asyncio.to_thread(transfers.close, 5.0)
        await asyncio.sleep(0)
        assert events.empty()

    asyncio.run(scenario())
