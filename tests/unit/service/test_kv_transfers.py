from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from baton_core.sessions.router_messages import KVSource
from baton_core.worker.worker_events import (
    AbortPull,
    BlockPull,
    ChecksumsFailed,
    ComputeChecksums,
    Pull,
    PullAborted,
    PullDone,
    WorkerEvent,
)
from baton_kv.in_process import InProcessConnector, InProcessRegistry
from baton_worker import kv_transfer
from baton_worker.first_pulls import FirstPulls
from baton_worker.kv_transfer import KVTransfers
from tests.builders import make_kv_spec


class StuckConnector(InProcessConnector):
    """Its checksums take until a test lets them go."""

    gate = threading.Event()

    def compute_checksums(self, block_ids: Sequence[int]) -> tuple[int | None, ...]:
        assert self.gate.wait(10.0)
        return tuple(block_ids)


class FailingConnector(InProcessConnector):
    """Copies nothing: a pull stays until it is aborted, and ends in an error some time after."""

    def pull(self, pull: Pull) -> None:
        self.pulled, self.is_aborted = pull, False

    def abort(self, pull_id: int) -> PullAborted:
        self.is_aborted = True
        return PullAborted(pull_id=pull_id, is_fenced=False)

    def poll(self) -> list[PullDone]:
        if not getattr(self, "is_aborted", False):
            return []
        self.is_aborted = False
        failed = tuple(block.local_block_id for block in self.pulled.blocks)
        return [
            PullDone(
                pull_id=self.pulled.pull_id,
                failed_block_ids=failed,
                error="it was aborted",
                num_bytes=0,
                seconds=0.0,
            )
        ]


async def test_the_end_of_a_pull_that_was_aborted_is_nothing_to_warn_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    events: asyncio.Queue[WorkerEvent] = asyncio.Queue()
    connector = FailingConnector(make_kv_spec(), 1, registry=InProcessRegistry())
    connector.allocate(4)
    transfers = KVTransfers(connector, events.put_nowait, FirstPulls({}))
    transfers.start()
    source = KVSource(worker_id="p", epoch=1, peer_address="", kv_description=connector.describe())
    blocks = (BlockPull(remote_block_id=0, local_block_id=1, checksum=1),)
    transfers.execute(Pull(pull_id=1, source=source, blocks=blocks))
    transfers.execute(AbortPull(pull_id=1))
    ends = [await asyncio.wait_for(events.get(), 30.0) for _ in range(2)]
    assert PullAborted(pull_id=1, is_fenced=False) in ends
    assert PullDone(pull_id=1, failed_block_ids=(1,), error="it was aborted") in ends
    await asyncio.to_thread(transfers.close, 5.0)
    said = [record for record in caplog.records if "did not arrive: it was aborted" in record.getMessage()]
    assert [record.levelname for record in said] == ["DEBUG"]


async def test_checksums_that_do_not_come_are_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_transfer, "_CHECKSUMS_WITHIN_S", 0.05)
    events: asyncio.Queue[WorkerEvent] = asyncio.Queue()
    connector = StuckConnector(make_kv_spec(), 1, registry=InProcessRegistry())
    connector.allocate(4)
    transfers = KVTransfers(connector, events.put_nowait, FirstPulls({}))
    transfers.start()
    request = ComputeChecksums(request_id="r", indices=(0, 1), block_ids=(2, 3))
    transfers.execute(request)
    event = await asyncio.wait_for(events.get(), 5.0)
    text = "no checksums of 2 blocks within 0.05 s"
    assert event == ChecksumsFailed(request=request, error=text)
    connector.gate.set()
    await asyncio.to_thread(transfers.close, 5.0)
    await asyncio.sleep(0)
    assert events.empty()
