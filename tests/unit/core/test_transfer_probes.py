"""Pairs of workers are tried with a prompt that one computes and the other pulls."""

from __future__ import annotations

from typing import Any

from baton_core.errors import ErrorCode
from baton_core.requests.attempt_names import PROBE_MARK
from baton_core.sessions.router_messages import Prefill, Refused
from baton_core.sessions.worker_info import Role
from baton_router.core.fleet.transfer_probes import AGAIN_AFTER_S, MAX_OPEN, PULL_WITHIN_S, TransferProbes
from baton_router.core.fleet.transfer_probes import Pair as Names
from tests.builders import make_source, make_worker_info
from tests.unit.core.workers import Pair


class Trial:
    """The tries of a prefill and a decode worker, whose messages a test carries."""

    def __init__(self) -> None:
        self.results: list[tuple[Names, str]] = []
        self.pair = Pair(by_checksum=True)
        self.checks = TransferProbes("r", make_source, lambda pair, why: self.results.append((pair, why)))
        self.now = 0.0

    def join(self) -> None:
        self.deliver(self.checks.join(self.now, make_worker_info("d", role=Role.DECODE)))
        self.deliver(self.checks.join(self.now, make_worker_info("p", role=Role.PREFILL)))

    def deliver(self, sent: list[Any]) -> None:
        """Bring what is sent to the workers, let them work, and bring their answers back."""
        for one in sent:
            worker = {"p": self.pair.p, "d": self.pair.d}[one.worker_id]
            self.pair.carry(worker.command(one.message, now=self.now), now=self.now)
            while worker is self.pair.p and worker.core.num_requests:
                self.pair.carry(worker.step(now=self.now), now=self.now)
        self.pair.finish_pulls(now=self.now)
        for name, worker in (("p", self.pair.p), ("d", self.pair.d)):
            for message in worker.take_told():
                assert self.checks.is_own(message)
                self.deliver(self.checks.on_message(self.now, name, message))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.pair.p.wait(self.now)
        self.pair.carry(self.pair.d.wait(self.now), now=self.now)
        self.deliver(self.checks.on_deadline(self.now))

    def check_that_nothing_is_left(self) -> None:
        for worker in (self.pair.p, self.pair.d):
            assert not worker.core.open_work
            assert worker.core.pool.num_free == worker.core.pool.num_blocks, "something is cached"


def test_a_pair_whose_blocks_arrive_is_whole_and_keeps_nothing_of_the_try() -> None:
    trial = Trial()
    trial.join()
    assert trial.results == [(Names("p", "d"), "")]
    trial.check_that_nothing_is_left()
    assert trial.checks.next_deadline() is None


def test_a_pair_whose_blocks_arrive_wrong_is_broken_until_they_arrive_right() -> None:
    trial = Trial()
    trial.pair.broken_blocks = set(range(16))
    trial.join()
    assert trial.results == [(Names("p", "d"), "0 blocks arrived, 3 tokens did not")]
    trial.check_that_nothing_is_left()
    trial.pair.broken_blocks = set()
    trial.wait(AGAIN_AFTER_S)
    assert trial.results[1:] == [(Names("p", "d"), "")]


def test_a_pair_that_does_not_hear_each_other_is_broken() -> None:
    trial = Trial()
    trial.pair.is_cut = True
    trial.join()
    assert trial.results == []
    trial.wait(PULL_WITHIN_S)
    (result,) = trial.results
    assert result[0] == Names("p", "d")
    assert result[1] in ("no blocks arrived within 10 s", "0 blocks arrived, 3 tokens did not")


def test_a_worker_without_room_says_nothing_of_the_pair_and_is_tried_again() -> None:
    trial = Trial()
    sent = trial.checks.join(0.0, make_worker_info("d", role=Role.DECODE))
    sent += trial.checks.join(0.0, make_worker_info("p", role=Role.PREFILL))
    (one,) = sent
    assert isinstance(one.message, Prefill)
    refused = Refused(request_id=one.message.spec.request_id, code=ErrorCode.OVERLOADED, message="full")
    trial.deliver(trial.checks.on_message(0.0, "p", refused))
    assert trial.results == []
    trial.wait(AGAIN_AFTER_S)
    assert trial.results == [(Names("p", "d"), "")]


def test_few_pairs_are_tried_at_a_time_and_none_of_a_worker_that_has_left() -> None:
    results: list[Names] = []
    checks = TransferProbes("r", make_source, lambda pair, why: results.append(pair))
    sent: list[Any] = []
    for number in range(4):
        sent += checks.join(0.0, make_worker_info(f"m{number}", role=Role.MIXED))
    assert len(sent) == MAX_OPEN
    for number in range(3):
        checks.leave(0.0, f"m{number}")
    assert checks.next_deadline() is None
    assert results == []


def test_no_request_of_a_client_is_taken_for_a_probe() -> None:
    """Names of clients have no control characters."""
    probes = TransferProbes("", make_source, lambda pair, text: None)
    assert not probes.is_own(Refused(request_id="pair-check:1", code=ErrorCode.OVERLOADED, message=""))
    assert any(not character.isprintable() for character in PROBE_MARK)


def test_no_probe_begins_while_they_are_held() -> None:
    trial = Trial()
    trial.checks.hold()
    trial.join()
    assert (trial.checks.num_open, trial.results) == (0, [])
    trial.deliver(trial.checks.resume(trial.now))
    assert trial.results == [(Names("p", "d"), "")]
