"""The transfer thread over every backend."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from baton_kv.connector import AbortResult, KVConnector, PullOrder, PullOutcome
from baton_kv.in_process import InProcessConnector, InProcessRegistry
from baton_kv.transfer_thread import Aborted, Connected, Sealed, TransferResult, TransferThread
from tests.conformance.kv.delaying import DelayingConnector
from tests.conformance.kv.pairs import HOLDER, SMALL, Site, Worker, make_order

TIMEOUT_S = 10.0


class Inbox:
    """Receives what a transfer thread delivers."""

    def __init__(self) -> None:
        self.batches: queue.SimpleQueue[list[TransferResult]] = queue.SimpleQueue()

    def take(self, num_results: int) -> list[TransferResult]:
        """The next results; fails if the last batch brings more than asked for."""
        results: list[TransferResult] = []
        while len(results) < num_results:
            results += self.batches.get(timeout=TIMEOUT_S)
        assert len(results) == num_results
        return results


@dataclass
class Rig:
    """A holder, and a puller behind a transfer thread that starts no pull while `gate` is clear."""

    holder: Worker
    puller: Worker
    gate: threading.Event
    thread: TransferThread
    inbox: Inbox


@pytest.fixture
def rig(site: Site) -> Iterator[Rig]:
    holder, puller = site.pair()
    inbox, gate = Inbox(), threading.Event()
    gate.set()
    thread = TransferThread(DelayingConnector(puller.connector, gate), inbox.batches.put, max_outstanding=3)
    serving = TransferThread(holder.connector, Inbox().batches.put)
    for started in (thread, serving):
        started.start()
    yield Rig(holder, puller, gate, thread, inbox)
    for started in (thread, serving):
        started.close(TIMEOUT_S)


def test_each_command_is_answered_in_order(rig: Rig) -> None:
    assert rig.thread.connect("prefill-1", rig.holder.connector.describe())
    assert rig.thread.seal(8, (1, 2))
    assert rig.thread.pull(make_order(rig.holder, {4: 2}, source="prefill-1"))
    connected, sealed, outcome = rig.inbox.take(3)
    assert isinstance(connected, Connected)
    assert (connected.peer_id, connected.error) == ("prefill-1", None)
    assert connected.transport
    assert sealed == Sealed(tag=8, checksums=rig.puller.connector.seal((1, 2)))
    assert isinstance(outcome, PullOutcome)
    assert (outcome.pull_id, outcome.error) == (1, None)
    assert torch.equal(rig.puller.bytes[4], rig.holder.bytes[2])


def test_outcomes_come_in_the_order_of_the_pulls(rig: Rig) -> None:
    rig.gate.clear()
    for pull_id in (3, 1, 2):
        assert rig.thread.pull(make_order(rig.holder, {pull_id: 0}, pull_id=pull_id))
    rig.gate.set()
    outcomes = rig.inbox.take(3)
    assert [outcome.pull_id for outcome in outcomes if isinstance(outcome, PullOutcome)] == [3, 1, 2]


def test_a_full_queue_refuses_and_takes_again_after_the_answers(rig: Rig) -> None:
    rig.gate.clear()
    for pull_id in (1, 2, 3):
        assert rig.thread.pull(make_order(rig.holder, {pull_id: 0}, pull_id=pull_id))
    assert not rig.thread.pull(make_order(rig.holder, {4: 0}, pull_id=4))
    assert not rig.thread.seal(1, (0,))
    assert not rig.thread.connect("prefill-1", b"")
    rig.thread.abort(2)
    assert rig.inbox.take(1) == [Aborted(pull_id=2, result=AbortResult.FENCED)]
    assert rig.thread.pull(make_order(rig.holder, {4: 0}, pull_id=4))
    assert not rig.thread.seal(1, (0,))
    rig.gate.set()
    rig.inbox.take(3)
    for tag in range(3):
        assert rig.thread.seal(tag, (0,))
    rig.inbox.take(3)


def test_no_byte_changes_after_an_abort_was_answered(rig: Rig) -> None:
    rig.gate.clear()
    before = rig.puller.bytes.clone()
    rig.thread.pull(make_order(rig.holder, {5: 0}))
    rig.thread.abort(1)
    assert rig.inbox.take(1) == [Aborted(pull_id=1, result=AbortResult.FENCED)]
    rig.gate.set()
    rig.thread.seal(1, (0,))
    rig.inbox.take(1)
    assert torch.equal(rig.puller.bytes, before)


def test_an_abort_after_the_outcome_is_fenced(rig: Rig) -> None:
    rig.thread.pull(make_order(rig.holder, {5: 0}))
    rig.inbox.take(1)
    rig.thread.abort(1)
    assert rig.inbox.take(1) == [Aborted(pull_id=1, result=AbortResult.FENCED)]


def test_a_disconnect_fails_the_pulls_from_that_peer(rig: Rig) -> None:
    rig.thread.disconnect(HOLDER)
    rig.thread.pull(make_order(rig.holder, {5: 0}))
    (outcome,) = rig.inbox.take(1)
    assert isinstance(outcome, PullOutcome)
    assert outcome.failed == (5,)
    assert "source is 'prefill-0'" in str(outcome.error)


def test_a_bad_command_is_answered_and_the_next_one_served(rig: Rig) -> None:
    rig.thread.connect("prefill-1", b"nonsense")
    rig.thread.seal(1, (99,))
    rig.thread.pull(make_order(rig.holder, {5: 0}, epoch=7))
    connected, sealed, outcome = rig.inbox.take(3)
    assert isinstance(connected, Connected)
    assert "IncompatibleWorkerError" in str(connected.error)
    assert isinstance(sealed, Sealed)
    assert (sealed.checksums, sealed.error) == ((), "InvalidBlocksError: block_id is 99; allowed: 0 to 15")
    assert isinstance(outcome, PullOutcome)
    assert outcome.failed == (5,)
    assert rig.thread.seal(2, (0,))
    assert rig.inbox.take(1) == [Sealed(tag=2, checksums=rig.puller.connector.seal((0,)))]


def test_close_joins_withdraws_the_pool_and_refuses_what_follows(site: Site) -> None:
    holder, puller = site.pair()
    gate = threading.Event()
    inbox = Inbox()
    thread = TransferThread(DelayingConnector(puller.connector, gate), inbox.batches.put)
    thread.start()
    before = puller.bytes.clone()
    thread.pull(make_order(holder, {5: 0}))
    thread.close(TIMEOUT_S)
    assert "kv-transfer" not in [other.name for other in threading.enumerate()]
    assert not thread.seal(1, (0,))
    gate.set()
    assert inbox.batches.empty()
    assert torch.equal(puller.bytes, before)


class StuckConnector(InProcessConnector):
    """Hangs in `seal` until let go."""

    def __init__(self) -> None:
        super().__init__(SMALL, 1, InProcessRegistry())
        self.let_go = threading.Event()

    def seal(self, block_ids: object) -> tuple[int | None, ...]:
        self.let_go.wait(TIMEOUT_S)
        return ()


def test_close_gives_up_on_a_stuck_thread_at_its_deadline() -> None:
    connector = StuckConnector()
    thread = TransferThread(connector, lambda results: None)
    thread.start()
    thread.seal(1, (0,))
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
    for tag in range(3):
        assert thread.seal(tag, (0,))
        assert inbox.take(1) == [Sealed(tag=tag, checksums=connector.seal((0,)))]
    thread.close(TIMEOUT_S)
    assert 1 <= connector.num_waits <= 1 + (time.monotonic() - started) / 0.1
    assert "the KV connector cannot wait" in caplog.text


class BrokenConnector(InProcessConnector):
    """Breaks down on every poll; `result` is what its aborts answer."""

    def __init__(self, result: AbortResult | None) -> None:
        super().__init__(SMALL, 1, InProcessRegistry())
        self.result = result

    def poll(self) -> list[PullOutcome]:
        raise OSError("the device is lost")

    def abort(self, pull_id: int) -> AbortResult:
        if self.result is None:
            raise OSError("the device is lost")
        super().abort(pull_id)
        return self.result


@pytest.mark.parametrize("result", [AbortResult.FENCED, AbortResult.QUARANTINED, None])
def test_a_connector_that_breaks_down_fails_its_pulls_or_quarantines_them(result: AbortResult | None) -> None:
    connector: KVConnector = BrokenConnector(result)
    connector.allocate(4)
    inbox = Inbox()
    thread = TransferThread(connector, inbox.batches.put, max_outstanding=1)
    thread.start()
    for pull_id in (1, 2):
        assert thread.pull(PullOrder(pull_id=pull_id, source="?", epoch=1, copies=()))
        (answer,) = inbox.take(1)
        if result is AbortResult.FENCED:
            assert isinstance(answer, PullOutcome)
            assert answer.error == "OSError: the device is lost"
        else:
            assert answer == Aborted(pull_id=pull_id, result=AbortResult.QUARANTINED)
    thread.close(TIMEOUT_S)
