"""Fleets whose workers come and go: no request is lost, and what they cost is counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from baton_core.requests.request_context import Slo
from baton_core.sessions.worker_info import Role
from baton_router.core.fleet.role_pressure import Waiting, Worker
from baton_simulator.capacity.fleet_run import FleetPlan
from baton_simulator.capacity.scaled_run import ByNeed, ByQueue, ScaledRun, ScalingPlan
from baton_simulator.capacity.trace import Scale
from baton_simulator.capacity.workload import Ask, make_workload
from tests.unit.simulator.capacity_fleets import make_plan, make_requests

pytestmark = pytest.mark.slow

SCALING = ScalingPlan(start_s=20.0, every_s=5.0)


class Script:
    """A rule that says so many workers of each role at these times."""

    def __init__(self, *steps: tuple[float, int]) -> None:
        self._steps = steps

    def sample(self, now: float, workers: Sequence[Worker], waiting: Waiting) -> Mapping[Role, int]:
        count = [count for at_s, count in self._steps if at_s <= now][-1]
        return {Role.PREFILL: count, Role.DECODE: count}


def plan() -> FleetPlan:
    return make_plan("1P:1D")


def asks(count: int, every_s: int) -> list[Ask]:
    return make_workload(make_requests(count, every_ms=1000 * every_s), Scale())


def test_workers_join_after_the_time_of_a_start_and_leave_without_losing_a_request() -> None:
    run = ScaledRun(plan(), asks(100, 1), Script((-1.0, 1), (10.0, 3), (60.0, 1)), SCALING)
    results = run.run()
    assert all(result.is_whole for result in results)
    assert len(run.workers) == 6
    assert sum(worker.is_alive for worker in run.workers.values()) == 2
    end_s = run.clock.now
    least = 2 * end_s + 4 * 45.0
    assert least < 3600 * run.worker_hours < least + 4 * 30.0
    assert {count for at_s, count, _ in run.counts if 15.0 < at_s < 55.0} == {3}


@pytest.mark.parametrize("rule", [ByNeed(Slo()), ByQueue()])
def test_an_idle_fleet_keeps_a_worker_of_each_role(rule: ByNeed | ByQueue) -> None:
    run = ScaledRun(plan(), asks(3, 20), rule, SCALING)
    assert all(result.is_whole for result in run.run())
    assert run.counts[-1][1:] == (1, 1)


def test_a_queue_asks_for_workers_of_both_roles_while_it_waits_at_the_router() -> None:
    rule = ByQueue(threshold=5.0, down_s=10.0)
    assert rule.sample(0.0, [], Waiting(num_requests=11)) == {Role.PREFILL: 3, Role.DECODE: 3}
    assert rule.sample(9.0, [], Waiting()) == {Role.PREFILL: 3, Role.DECODE: 3}
    assert rule.sample(11.0, [], Waiting()) == {Role.PREFILL: 1, Role.DECODE: 1}
