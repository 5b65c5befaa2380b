"""A simulated cluster that nothing disturbs: where its blocks come from, and what it computes."""

from __future__ import annotations

import pytest

from baton_core.requests.sampling_params import SamplingParams
from baton_core.sessions.router_messages import RequestSpec
from baton_core.sessions.worker_info import Role
from baton_router.core.flow.flow_limits import FlowLimits
from baton_router.core.flow.router_core import RouterConfig
from baton_router.core.placement.placement_config import PlacementConfig, SplitMode
from baton_router.core.router_events import FinishRequest
from baton_simulator.cluster import Cluster
from baton_simulator.hash_engine import ONE_KIND, Windows
from baton_simulator.members import Shape, make_spec, start_worker
from baton_simulator.scenario import TWO_KINDS
from tests.sim.checks import check_clean
from tests.sim.hash_cluster import check_tokens, make_cluster


def test_one_request_travels_from_prefill_to_decode() -> None:
    cluster = make_cluster(0)
    params = SamplingParams(max_tokens=5, seed=1)
    prompt = tuple(range(10))
    cluster.router.submit(RequestSpec(request_id="q", prompt_token_ids=prompt, params=params), timeout_s=9.0)
    cluster.clock.run(20.0)
    outcome = cluster.router.outcomes["q"]
    check_tokens(outcome)
    (end,) = outcome.ends
    assert isinstance(end, FinishRequest)
    assert (end.timings.prefill_worker, end.timings.decode_worker) == ("p", "d")
    assert end.timings.transferred_bytes == 3 * make_spec(ONE_KIND).block_bytes
    check_clean(cluster)


@pytest.mark.parametrize("windows", [ONE_KIND, TWO_KINDS])
def test_the_prefix_of_requests_that_come_together_is_computed_once(windows: Windows) -> None:
    router = RouterConfig(limits=FlowLimits(placement=PlacementConfig(split=SplitMode.NEVER)))
    cluster = Cluster(0, router=router)
    shape = Shape(num_blocks=480, has_checksums=False, windows=windows, longest=1100, speculates=False)
    engine = start_worker(cluster, "m", Role.MIXED, shape)
    cluster.run_until_joined()
    prefix, params = tuple(range(1000)), SamplingParams(seed=1, max_tokens=3)
    tails = [tuple(range(2000 + 10 * number, 2005 + number % 3 + 10 * number)) for number in range(16)]
    for number, tail in enumerate(tails):
        spec = RequestSpec(request_id=f"q{number}", prompt_token_ids=prefix + tail, params=params)
        cluster.router.submit(spec, timeout_s=60.0)
    cluster.clock.run(30.0)
    for outcome in cluster.router.outcomes.values():
        check_tokens(outcome, windows)
    num_decodes = 16 * (params.max_tokens - 1)
    assert engine.num_computed_tokens == len(prefix) + sum(map(len, tails)) + num_decodes
    check_clean(cluster)
