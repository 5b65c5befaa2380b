"""The transfer thread over every backend."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pytest
import torch

from baton_core.worker.worker_events import (
    AbortPull,
    ChecksumsComputed,
    ChecksumsFailed,
    ComputeChecksums,
    Pull,
    PullAborted,
    PullDone,
)
from baton_kv import transfer_thread
from baton_kv.connector import KVConnector
from baton_kv.in_process import InProcessConnector, InProcessRegistry
from baton_kv.transfer_thread import Connected, TransferEvent, TransferThread
from tests.builders import make_source
from tests.conformance.kv.delaying import DelayingConnector
from tests.conformance.kv.pairs import PRODUCER, SMALL, Site, Worker, make_pull

TIMEOUT_S = 10.0


class Inbox:
    """Receives what a transfer thread delivers."""

    def __init__(self) -> None:
        self.batches: queue.SimpleQueue[list[TransferEvent]] = queue.SimpleQueue()

    def take(self, num_results: int) -> list[TransferEvent]:
        """The next results; fails if the last batch brings more than asked for."""
        results: list[TransferEvent] = []
        while len(results) < num_results:
            results += self.batches.get(timeout=TIMEOUT_S)
        assert len(results) == num_results
        return results


@dataclass
class Rig:
    """A producer, and a consumer behind a transfer thread that starts no pull while `gate` is clear."""

    producer: Worker
    consumer: Worker
    gate: threading.Event
    thread: TransferThread
    inbox: Inbox


@pytest.fixture
def rig(site: Site) -> Iterator[Rig]:
    producer, consumer = site.pair()
    inbox, gate = Inbox(), threading.Event()
    gate.set()
    thread = TransferThread(DelayingConnector(consumer.connector, gate), inbox.batches.put, max_outstanding=3)
    serving = TransferThread(producer.connector, Inbox().batches.put)
    for started in (thread, serving):
        started.start()
    yield Rig(producer, consumer, gate, thread, inbox)
    for started in (thread, serving):
        started.close(TIMEOUT_S)


def pull_from(
    producer: Worker,
    block_map: Mapping[int, int],
    *,
    pull_id: int = 1,
    epoch: int = 1,
    worker_id: str = PRODUCER,
) -> Pull:
    """A pull that says how to open the producer's pool."""
    pull = make_pull(producer, block_map, pull_id=pull_id, epoch=epoch, source=worker_id)
    description = producer.connector.describe()
    return replace(pull, source=replace(pull.source, kv_description=description))


def checksums_of(*block_ids: int) -> ComputeChecksums:
    return ComputeChecksums(request_id="r", indices=block_ids, block_ids=block_ids)


def computed(connector: KVConnector, request: ComputeChecksums) -> ChecksumsComputed | ChecksumsFailed:
    """The answer to a request for checksums."""
    checksums = tuple(
        checksum for checksum in connector.compute_checksums(request.block_ids) if checksum is not None
    )
    if not checksums:
        return ChecksumsFailed(request=request, error="no checksums")
    return ChecksumsComputed(request=request, checksums=checksums)


def drained(inbox: Inbox) -> list[TransferEvent]:
    """Everything that was delivered until now."""
    return [event for _ in range(inbox.batches.qsize()) for event in inbox.batches.get()]


def fenced(pull_id: int) -> PullAborted:
    return PullAborted(pull_id=pull_id, is_fenced=True)


def test_each_command_is_answered_in_order(rig: Rig) -> None:
    request = checksums_of(1, 2)
    assert rig.thread.execute(request)
    assert rig.thread.execute(pull_from(rig.producer, {4: 2}, worker_id="prefill-1"))
    checksums, connected, done = rig.inbox.take(3)
    assert checksums == computed(rig.consumer.connector, request)
    assert isinstance(connected, Connected)
    assert connected.worker_id == "prefill-1"
    assert connected.transport
    assert isinstance(done, PullDone)
    assert (done.pull_id, done.error) == (1, "")
    assert torch.equal(rig.consumer.bytes[4], rig.producer.bytes[2])


def test_a_pool_is_opened_once_for_each_epoch(rig: Rig) -> None:
    assert rig.thread.execute(pull_from(rig.producer, {4: 2}))
    assert [type(event) for event in rig.inbox.take(2)] == [Connected, PullDone]
    assert rig.thread.execute(pull_from(rig.producer, {5: 3}, pull_id=2))
    assert [type(event) for event in rig.inbox.take(1)] == [PullDone]
    assert rig.thread.execute(pull_from(rig.producer, {6: 3}, pull_id=3, epoch=2))
    connected, done = rig.inbox.take(2)
    assert isinstance(connected, Connected)
    assert isinstance(done, PullDone)
    assert "epoch is 2; allowed: 1" in done.error


@pytest.fixture
def short_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_thread, "LOOK_S", 0.01)
    monkeypatch.setattr(transfer_thread, "IDLE_S", 0.05)


@pytest.mark.usefixtures("short_idle")
def test_a_pool_that_is_not_used_is_closed_and_opened_again(rig: Rig) -> None:
    for pull_id in (1, 2):
        assert rig.thread.execute(pull_from(rig.producer, {4: 2}, pull_id=pull_id))
        opened, done = rig.inbox.take(2)
        assert isinstance(opened, Connected)
        assert isinstance(done, PullDone)
        assert done.error == ""
        deadline = time.monotonic() + TIMEOUT_S
        while rig.thread._pools:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_each_pull_ends_once_whichever_of_them_is_over_first(rig: Rig) -> None:
    rig.gate.clear()
    for pull_id in (3, 1, 2):
        assert rig.thread.execute(pull_from(rig.producer, {pull_id: 0}, pull_id=pull_id))
    rig.gate.set()
    events = rig.inbox.take(4)
    ended = [(event.pull_id, event.error) for event in events if isinstance(event, PullDone)]
    assert sorted(ended) == [(1, ""), (2, ""), (3, "")]
    for pull_id in (1, 2, 3):
        assert torch.equal(rig.consumer.bytes[pull_id], rig.producer.bytes[0])


def test_a_full_queue_refuses_and_takes_again_after_the_answers(rig: Rig) -> None:
    rig.gate.clear()
    for pull_id in (1, 2, 3):
        assert rig.thread.execute(pull_from(rig.producer, {pull_id: 0}, pull_id=pull_id))
    assert not rig.thread.execute(pull_from(rig.producer, {4: 0}, pull_id=4))
    assert not rig.thread.execute(checksums_of(0))
    assert rig.thread.execute(AbortPull(pull_id=2))
    assert rig.inbox.take(2)[-1] == fenced(2)
    assert rig.thread.execute(pull_from(rig.producer, {4: 0}, pull_id=4))
    assert not rig.thread.execute(checksums_of(0))
    rig.gate.set()
    rig.inbox.take(3)
    for _ in range(3):
        assert rig.thread.execute(checksums_of(0))
    rig.inbox.take(3)


def test_no_byte_changes_after_an_abort_was_answered(rig: Rig) -> None:
    rig.gate.clear()
    before = rig.consumer.bytes.clone()
    rig.thread.execute(pull_from(rig.producer, {5: 0}))
    rig.thread.execute(AbortPull(pull_id=1))
    assert rig.inbox.take(2)[-1] == fenced(1)
    rig.gate.set()
    rig.thread.execute(checksums_of(0))
    rig.inbox.take(1)
    assert torch.equal(rig.consumer.bytes, before)


def test_an_abort_after_the_outcome_is_fenced(rig: Rig) -> None:
    rig.thread.execute(pull_from(rig.producer, {5: 0}))
    rig.inbox.take(2)
    rig.thread.execute(AbortPull(pull_id=1))
    assert rig.inbox.take(1) == [fenced(1)]


def test_a_bad_command_is_answered_and_the_next_one_served(rig: Rig) -> None:
    nowhere = replace(make_pull(rig.producer, {4: 0}), source=make_source("prefill-1"))
    rig.thread.execute(nowhere)
    rig.thread.execute(checksums_of(99))
    rig.thread.execute(pull_from(rig.producer, {5: 0}, epoch=7, pull_id=2))
    unopened, checksums, connected, done = rig.inbox.take(4)
    assert isinstance(unopened, PullDone)
    assert unopened.failed_block_ids == (4,)
    assert "IncompatibleWorkerError" in unopened.error
    text = "InvalidBlocksError: block_id is 99; allowed: 0 to 15"
    assert checksums == ChecksumsFailed(request=checksums_of(99), error=text)
    assert isinstance(connected, Connected)
    assert isinstance(done, PullDone)
    assert done.failed_block_ids == (5,)
    assert rig.thread.execute(checksums_of(0))
    assert rig.inbox.take(1) == [computed(rig.consumer.connector, checksums_of(0))]


def test_close_joins_withdraws_the_pool_and_refuses_what_follows(site: Site) -> None:
    producer, consumer = site.pair()
    gate = threading.Event()
    inbox = Inbox()
    thread = TransferThread(DelayingConnector(consumer.connector, gate), inbox.batches.put)
    thread.start()
    before = consumer.bytes.clone()
    thread.execute(pull_from(producer, {5: 0}))
    thread.close(TIMEOUT_S)
    assert "kv-transfer" not in [other.name for other in threading.enumerate()]
    assert not thread.execute(checksums_of(0))
    gate.set()
    assert not [event for event in drained(inbox) if not isinstance(event, Connected)]
    assert torch.equal(consumer.bytes, before)


class StuckConnector(InProcessConnector):
    """Hangs in `compute_checksums` until let go."""

    def __init__(self) -> None:
        super().__init__(SMALL, 1, InProcessRegistry())
        self.let_go = threading.Event()

    def compute_checksums(self, block_ids: object) -> tuple[int | None, ...]:
        self.let_go.wait(TIMEOUT_S)
        return ()


def test_close_gives_up_on_a_stuck_thread_at_its_deadline() -> None:
    connector = StuckConnector()
    thread = TransferThread(connector, lambda results: None)
    thread.start()
    thread.execute(checksums_of(0))
    with pytest.raises(TimeoutError, match=r"still busy after 0.05 s"):
        thread.close(0.05)
    connector.let_go.set()
    thread.close(TIMEOUT_S)


class RestlessConnector(InProcessConnector):
    """Cannot wait."""

    def __init__(self) -> None:
        super().__init__(SMALL, 1, InProcessRegistry())
        self.num_waits = 0

    def wait(self, timeout_s: float | None = None) -> None:
        self.num_waits += 1
        raise OSError("the poller is lost")


def test_a_connector_that_cannot_wait_answers_all_the_same_and_is_not_asked_too_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    connector = RestlessConnector()
    connector.allocate(4)
    inbox = Inbox()
    thread = TransferThread(connector, inbox.batches.put)
    started = time.monotonic()
    thread.start()
    for _ in range(3):
        assert thread.execute(checksums_of(0))
        assert inbox.take(1) == [computed(connector, checksums_of(0))]
    thread.close(TIMEOUT_S)
    assert 1 <= connector.num_waits <= 1 + (time.monotonic() - started) / 0.1
    assert "the KV connector cannot wait" in caplog.text


class BrokenConnector(InProcessConnector):
    """Breaks down on every poll; `is_fenced` is what its aborts answer, None that they fail, too."""

    def __init__(self, is_fenced: bool | None) -> None:
        super().__init__(SMALL, 1, InProcessRegistry())
        self.is_fenced = is_fenced

    def poll(self) -> list[PullDone]:
        raise OSError("the device is lost")

    def abort(self, pull_id: int) -> PullAborted:
        if self.is_fenced is None:
            raise OSError("the device is lost")
        super().abort(pull_id)
        return PullAborted(pull_id=pull_id, is_fenced=self.is_fenced)


@pytest.mark.parametrize("is_fenced", [True, False, None])
def test_a_connector_that_breaks_down_fails_its_pulls_or_quarantines_them(is_fenced: bool | None) -> None:
    connector: KVConnector = BrokenConnector(is_fenced)
    connector.allocate(4)
    inbox = Inbox()
    thread = TransferThread(connector, inbox.batches.put, max_outstanding=1)
    thread.start()
    source = replace(make_source("?"), kv_description=connector.describe())
    for pull_id in (1, 2):
        assert thread.execute(Pull(pull_id=pull_id, source=source, blocks=()))
        *_, answer = inbox.take(2 if pull_id == 1 else 1)
        if is_fenced:
            assert isinstance(answer, PullDone)
            assert answer.error == "OSError: the device is lost"
        else:
            assert answer == PullAborted(pull_id=pull_id, is_fenced=False)
    thread.close(TIMEOUT_S)
