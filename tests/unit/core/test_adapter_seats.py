"""Steps have a limited number of adapters; a request for another one waits for its place, not for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton_core.requests.adapter import Adapter
from baton_core.sessions.router_messages import FirstToken
from baton_core.worker.worker_events import AdapterLoaded
from baton_worker.core.adapter_cache import PATIENCE_S
from baton_worker.core.scheduler_config import SchedulerConfig, SchedulingPolicy
from tests.builders import make_request
from tests.unit.core.workers import make_worker

COMMON, RARE = (Adapter(name=name, digest=name * 64, path=f"/{name}") for name in "ab")
STEP_S = 0.1


class Traffic:
    """A worker of one adapter a step, with requests for `COMMON` that never end to come."""

    def __init__(self, policy: SchedulingPolicy = SchedulingPolicy.FCFS) -> None:
        scheduler = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64, max_loras=1, policy=policy)
        self.worker = make_worker(num_blocks=64, max_cpu_loras=4, scheduler=scheduler)
        self.now = 0.0
        self.num_common = 0
        self.common()
        self.worker.feed(AdapterLoaded(digest=COMMON.digest))
        self.worker.step()

    def common(self) -> None:
        self.num_common += 1
        self.send(f"common{self.num_common}", COMMON, max_tokens=6)

    def send(self, name: str, adapter: Adapter | None, **request: int) -> None:
        spec = make_request(name, first=1 + len(name) + 7 * self.num_common % 300, **request)
        self.worker.generate(replace(spec, adapter=adapter), now=self.now)

    def rare(self, **request: int) -> None:
        self.send("rare", RARE, max_tokens=2, **request)
        self.worker.feed(AdapterLoaded(digest=RARE.digest), now=self.now)

    def begins_within(self, seconds: float, name: str) -> bool:
        until_s = self.now + seconds
        while self.now < until_s:
            self.now += STEP_S
            if round(self.now / STEP_S) % 3 == 0:
                self.common()
            self.worker.step(now=self.now)
            if any(first.request_id == name for first in self.worker.heard(FirstToken)):
                return True
        return False


def test_one_is_passed_for_a_while_then_awaited() -> None:
    traffic = Traffic()
    traffic.rare()
    assert not traffic.begins_within(PATIENCE_S, "rare")
    assert traffic.begins_within(1.0, "rare")


def test_one_that_is_more_important_is_not_passed() -> None:
    traffic = Traffic(SchedulingPolicy.PRIORITY)
    traffic.rare(priority=-1)
    assert traffic.begins_within(1.0, "rare")


@pytest.mark.parametrize("policy", list(SchedulingPolicy))
def test_those_without_an_adapter_pass_whoever_waits(policy: SchedulingPolicy) -> None:
    traffic = Traffic(policy)
    traffic.rare()
    traffic.begins_within(PATIENCE_S, "rare")
    traffic.common()
    traffic.send("plain", None, max_tokens=1)
    assert traffic.begins_within(2 * STEP_S, "plain")
