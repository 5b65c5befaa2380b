"""Roles are switched and workers drained under load: no request is lost, and none gets another token."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from baton_core.errors import InvalidRequestError
from baton_core.requests.sampling_params import SamplingParams
from baton_core.sessions.control_messages import ControlAction
from baton_core.sessions.router_messages import RequestSpec
from baton_core.sessions.worker_info import Role
from baton_router.core.fleet.role_balance import BalanceConfig
from baton_router.core.fleet.role_guard import require_served
from baton_router.core.flow.flow_limits import FlowLimits
from baton_router.core.flow.router_core import RouterConfig
from baton_router.core.placement.placement_config import PlacementConfig, SplitMode
from baton_router.core.placement.routing_policies import RoutingPolicy
from baton_router.core.router_events import FinishRequest
from baton_simulator.cluster import Cluster
from baton_simulator.conditions import Conditions, Faults
from baton_simulator.hash_engine import ONE_KIND, VOCAB_SIZE, Windows
from baton_simulator.members import Shape, start_worker
from baton_simulator.network import Weather
from baton_simulator.scenario import TWO_KINDS
from baton_simulator.transports import BACKENDS
from tests.sim.checks import check_clean
from tests.sim.hash_cluster import check_tokens

ROLES = {"a": Role.PREFILL, "b": Role.PREFILL, "c": Role.DECODE, "d": Role.DECODE}
FAULTS = Faults(pull_failure=0.02)
WEATHER = Weather(loss=0.02, repeat=0.05, stream_break=0.001, max_delay_s=0.05)


def make_sim(seed: int, router: RouterConfig, weather: Weather) -> Cluster:
    backend = replace(BACKENDS["shared_memory"], has_checksums=bool(seed % 2))
    conditions = Conditions(weather=weather, faults=FAULTS, backend=backend)
    return Cluster(seed, router=router, conditions=conditions)


def make_cluster(
    seed: int, roles: dict[str, Role], *, num_blocks: int = 60, balance: BalanceConfig | None
) -> Cluster:
    placement = PlacementConfig(split=SplitMode.AUTO, min_split_tokens=16)
    router = RouterConfig(limits=FlowLimits(placement=placement), adaptive_roles=balance)
    cluster = make_sim(seed, router, WEATHER)
    for name, role in roles.items():
        start_worker(cluster, name, role, Shape(num_blocks=num_blocks, has_checksums=bool(seed % 2)))
    cluster.run_until_joined()
    return cluster


def submit(
    cluster: Cluster,
    seed: int,
    *,
    num_requests: int,
    within_s: float,
    max_tokens: int = 20,
    longest: int = 89,
    name: str = "q",
) -> None:
    rng = Random(seed + 1)
    for number in range(num_requests):
        prompt = tuple(rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, longest)))
        params = SamplingParams(n=rng.choice([1, 1, 3]), seed=number, max_tokens=rng.randint(1, max_tokens))
        spec = RequestSpec(request_id=f"{name}{number}", prompt_token_ids=prompt, params=params)
        cluster.clock.after(rng.uniform(0, within_s), lambda s=spec: cluster.router.submit(s, timeout_s=80.0))


def change_something(cluster: Cluster, rng: Random) -> None:
    """As a router's shell lets operators: one change at a time, and none that leaves a part to nobody."""
    if cluster.router.open_controls:
        return
    worker_id = rng.choice(sorted(cluster.workers))
    action = rng.choice([ControlAction.SET_ROLE, ControlAction.DRAIN, ControlAction.UNDRAIN])
    argument: dict[str, Any] = {"role": rng.choice(list(Role))} if action is ControlAction.SET_ROLE else {}
    argument_json = json.dumps(argument)
    try:
        require_served(action, argument_json, [worker_id], cluster.router.core.fleet.workers())
    except InvalidRequestError:
        return
    cluster.router.control(worker_id, action, argument_json)


def check_nothing_lost(cluster: Cluster, windows: Windows = ONE_KIND) -> None:
    for outcome in cluster.router.outcomes.values():
        check_tokens(outcome, windows)
        assert isinstance(outcome.ends[0], FinishRequest), outcome.ends[0]
    check_clean(cluster)


@pytest.mark.parametrize("seed", range(12))
def test_no_request_is_lost_while_roles_are_switched_and_workers_drained(seed: int) -> None:
    cluster = make_cluster(seed, ROLES, num_blocks=(40, 60, 120)[seed % 3], balance=None)
    submit(cluster, seed, num_requests=16, within_s=2.0)
    rng = Random(seed + 2)
    for _ in range(40):
        cluster.clock.after(rng.uniform(0, 3.0), lambda: change_something(cluster, rng))
    cluster.clock.run(90.0)
    check_nothing_lost(cluster)
    assert len(cluster.router.results) > 5
    assert all(result.code is None for result in cluster.router.results)


@pytest.mark.parametrize("windows", [ONE_KIND, TWO_KINDS])
@pytest.mark.parametrize("seed", range(3))
def test_a_prompt_stays_where_it_was_computed_if_its_decode_worker_refuses_and_is_drained(
    seed: int, windows: Windows
) -> None:
    placement = PlacementConfig(policy=RoutingPolicy.ROUND_ROBIN, min_split_tokens=2)
    router = RouterConfig(limits=FlowLimits(placement=placement))
    cluster = make_sim(seed, router, replace(WEATHER, max_delay_s=0.2))
    shape = Shape(num_blocks=120, has_checksums=bool(seed % 2), windows=windows)
    for name, role in {"m": Role.MIXED, "d": Role.DECODE}.items():
        start_worker(cluster, name, role, shape)
    cluster.run_until_joined()
    for number in range(8):
        cluster.router.control("d", ControlAction.DRAIN)
        submit(
            cluster, seed + number, num_requests=4, within_s=0.1, max_tokens=5, longest=20, name=f"{number}-"
        )
        cluster.clock.run(number + 0.7)
        cluster.router.control("d", ControlAction.UNDRAIN)
        cluster.clock.run(number + 1.0)
    cluster.clock.run(30.0)
    check_nothing_lost(cluster, windows)
    decisions = [decision for record in cluster.router.core.log.recent() for decision in record.decisions]
    moved = [decision.chosen for decision in decisions if decision.reason.startswith("moved: m ")]
    assert any(chosen is not None and chosen.decode == "m" for chosen in moved)
