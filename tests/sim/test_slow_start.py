"""A decode worker is slow at first and then as fast as the other: both get their part of the requests."""

from __future__ import annotations

from collections import Counter

import pytest

from baton_core.requests.sampling_params import SamplingParams
from baton_core.sessions.router_messages import RequestSpec
from baton_core.sessions.worker_info import Role
from baton_core.worker.step_plan import StepPlan
from baton_router.core.flow.flow_limits import FlowLimits
from baton_router.core.flow.router_core import RouterConfig
from baton_router.core.placement.placement_config import PlacementConfig, SplitMode
from baton_router.core.router_events import FinishRequest
from baton_simulator.clock import Clock
from baton_simulator.cluster import Cluster
from baton_simulator.conditions import Conditions, LinearCost
from baton_simulator.members import Shape, start_worker
from tests.sim.checks import check_clean
from tests.sim.hash_cluster import check_tokens

SLOW_S = 1.0
EVERY_S = 0.1
NUM_REQUESTS = 600
COST = LinearCost(base_s=0.002, per_token_s=0.0005)


class SlowAtFirst:
    """Steps that begin within the first second take as long as fifty."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_s = clock.now + SLOW_S

    def step_s(self, plan: StepPlan) -> float:
        return COST.step_s(plan) * (50.0 if self._clock.now < self._until_s else 1.0)


def run(seed: int, split: SplitMode, *, is_slow: bool) -> list[str]:
    """Serve some requests for each of which the cluster is idle; returns where each was decoded."""
    placement = PlacementConfig(split=split, min_split_tokens=8)
    router = RouterConfig(limits=FlowLimits(placement=placement))
    cluster = Cluster(seed, router=router, conditions=Conditions(cost=COST))
    shape = Shape(num_blocks=120, has_checksums=False, plans_ahead=False, speculates=False)
    start_worker(cluster, "p", Role.PREFILL, shape)
    start_worker(cluster, "d1", Role.DECODE, shape, cost=SlowAtFirst(cluster.clock) if is_slow else None)
    start_worker(cluster, "d2", Role.DECODE, shape)
    cluster.run_until_joined()
    for number in range(NUM_REQUESTS):
        prompt = tuple(range(20 * number, 20 * number + 12))
        params = SamplingParams(max_tokens=6, seed=number)
        spec = RequestSpec(request_id=f"q{number}", prompt_token_ids=prompt, params=params)
        cluster.clock.after(EVERY_S * number, lambda spec=spec: cluster.router.submit(spec, timeout_s=60.0))
    cluster.clock.run(EVERY_S * NUM_REQUESTS + 20.0)
    decoders = []
    for outcome in cluster.router.outcomes.values():
        check_tokens(outcome)
        (end,) = outcome.ends
        assert isinstance(end, FinishRequest)
        decoders.append(end.timings.decode_worker)
    check_clean(cluster)
    return decoders


@pytest.mark.parametrize(
    ("split", "is_slow"), [(SplitMode.ALWAYS, True), (SplitMode.NEVER, True), (SplitMode.NEVER, False)]
)
def test_both_decode_workers_get_about_half_of_the_requests(split: SplitMode, is_slow: bool) -> None:
    decoders = run(1, split, is_slow=is_slow)
    last = Counter(decoders[-100:])
    assert 40 <= last["d1"] <= 60, (last, Counter(decoders))
