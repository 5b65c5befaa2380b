"""Prefix caches are reset under load and faults: no request is lost, and none gets another token."""

from __future__ import annotations

import json
from random import Random

import pytest

from baton_core.sessions.control_messages import ControlAction
from baton_router.core.flow.flow_limits import FlowLimits
from baton_router.core.flow.router_core import RouterConfig
from baton_router.core.placement.placement_config import PlacementConfig, SplitMode
from baton_simulator.cluster import Cluster
from baton_simulator.hash_engine import ONE_KIND, Windows
from baton_simulator.members import Shape, start_worker
from baton_simulator.scenario import TWO_KINDS
from tests.sim.test_roles import ROLES, WEATHER, check_nothing_lost, make_sim, submit

NUM_RESETS = 60
RUNNING_TOO = '{"reset_running_requests": true}'


def reset(cluster: Cluster) -> None:
    """Ask all workers, as a router's shell lets operators: one reset at a time."""
    if not cluster.router.open_controls:
        for worker_id in sorted(ROLES):
            cluster.router.control(worker_id, ControlAction.RESET_PREFIX_CACHE, RUNNING_TOO)


@pytest.mark.parametrize("windows", [ONE_KIND, TWO_KINDS])
@pytest.mark.parametrize("split", [SplitMode.ALWAYS, SplitMode.AUTO])
@pytest.mark.parametrize("seed", range(4))
def test_no_request_is_lost_while_caches_are_reset(seed: int, split: SplitMode, windows: Windows) -> None:
    placement = PlacementConfig(split=split, min_split_tokens=16)
    cluster = make_sim(seed, RouterConfig(limits=FlowLimits(placement=placement)), WEATHER)
    shape = Shape(
        num_blocks=(60, 120)[seed % 2] * len(windows), has_checksums=bool(seed % 2), windows=windows
    )
    for name, role in ROLES.items():
        start_worker(cluster, name, role, shape)
    cluster.run_until_joined()
    submit(cluster, seed, num_requests=24, within_s=2.0, max_tokens=80, longest=60)
    rng = Random(seed + 2)
    for _ in range(NUM_RESETS):
        cluster.clock.after(rng.uniform(0, 3.0), lambda: reset(cluster))
    cluster.clock.run(90.0)
    check_nothing_lost(cluster, windows)
    results = cluster.router.results
    assert results
    assert not cluster.router.open_controls
    assert all(json.loads(result.result_json)["num_in_use"] == 0 for result in results)
    assert sum(worker.core.scheduler.num_preemptions for worker in cluster.workers.values()) > 2
