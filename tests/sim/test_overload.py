"""Far more requests than a simulated cluster can serve: who is served, who is refused, and how fairly."""

from __future__ import annotations

from random import Random

import pytest

from baton_core.errors import ErrorCode
from baton_core.requests.request_context import RequestContext, Slo
from baton_core.requests.sampling_params import SamplingParams
from baton_core.sessions.router_messages import RequestSpec
from baton_core.sessions.worker_info import Role
from baton_router.core.admission.admission import AdmissionConfig
from baton_router.core.admission.admission_gate import DispatchLimit
from baton_router.core.admission.admission_outcome import AdmissionOutcome
from baton_router.core.flow.flow_limits import FlowLimits
from baton_router.core.flow.router_core import RouterConfig
from baton_router.core.placement.placement_config import PlacementConfig, SplitMode
from baton_router.core.router_events import FinishRequest, Submit
from baton_simulator.cluster import Cluster
from baton_simulator.hash_engine import VOCAB_SIZE
from baton_simulator.members import Shape, start_worker
from baton_simulator.outcome import Outcome
from tests.sim.checks import check_clean
from tests.sim.hash_cluster import check_tokens

MAX_QUEUED = 16
FLOOD, TRICKLE = "flood", "trickle"


def make_cluster(seed: int, max_queued: int = MAX_QUEUED) -> Cluster:
    """One worker of eight seats, behind a router that gives it no more than those."""
    config = AdmissionConfig(
        max_queued_requests=max_queued, aging_s=0.2, dispatch_limit=DispatchLimit(sequences_per_seat=1.0)
    )
    limits = FlowLimits(placement=PlacementConfig(split=SplitMode.NEVER), queue_s=2.0)
    router = RouterConfig(limits=limits, admission=config)
    cluster = Cluster(seed, router=router)
    start_worker(cluster, "m", Role.MIXED, Shape(num_blocks=480, has_checksums=False))
    cluster.run_until_joined()
    return cluster


def submit(cluster: Cluster, name: str, at_s: float, *, tenant: str, priority: int = 0, **slo: float) -> None:
    rng = Random(name)
    prompt = tuple(rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(20, 40)))
    params = SamplingParams(seed=1, max_tokens=9)
    spec = RequestSpec(request_id=name, prompt_token_ids=prompt, params=params, priority=priority)
    context = RequestContext(tenant=tenant, slo=Slo(**slo))

    def come() -> None:
        cluster.router.outcomes[name] = Outcome(spec)
        cluster.router.handle(Submit(spec=spec, timeout_s=60.0, context=context))

    cluster.clock.after(at_s, come)


def finished(cluster: Cluster, prefix: str = "") -> list[str]:
    """Return the served requests in the order of their first tokens; all others were told to come again."""
    outcomes = {name: one for name, one in cluster.router.outcomes.items() if name.startswith(prefix)}
    for outcome in outcomes.values():
        check_tokens(outcome)
        (end,) = outcome.ends
        assert isinstance(end, FinishRequest) or end.code is ErrorCode.OVERLOADED, end
    served = [name for name, one in outcomes.items() if isinstance(one.ends[0], FinishRequest)]
    return sorted(served, key=lambda name: outcomes[name].first_token_s or 0.0)


@pytest.mark.parametrize("seed", range(2))
def test_a_flood_of_one_tenant_takes_nothing_from_the_share_of_another(seed: int) -> None:
    cluster = make_cluster(seed)
    for number in range(100):
        submit(cluster, f"{FLOOD}{number}", number * 0.004, tenant=FLOOD)
    for number in range(5):
        submit(cluster, f"{TRICKLE}{number}", 0.1 + number * 0.06, tenant=TRICKLE)
    cluster.clock.run(10.0)
    assert len(finished(cluster, TRICKLE)) == 5
    num_served = len(finished(cluster, FLOOD))
    assert 0 < num_served < 100
    counts = cluster.router.core.admission.num_by_outcome
    assert counts[AdmissionOutcome.ADMITTED] == num_served + 5
    assert sum(counts.values()) == 105
    check_clean(cluster)


def test_tenants_that_ask_for_too_much_alike_get_alike() -> None:
    cluster = make_cluster(3)
    for number in range(50):
        for tenant in "abc":
            submit(cluster, f"{tenant}{number}", number * 0.01, tenant=tenant)
    cluster.clock.run(10.0)
    served = [len(finished(cluster, tenant)) for tenant in "abc"]
    assert 0 < min(served) < 50
    assert max(served) <= 1.3 * min(served), served
    check_clean(cluster)


def test_an_old_request_of_low_priority_gets_through_a_stream_of_better_ones() -> None:
    cluster = make_cluster(1, max_queued=100)
    submit(cluster, "low", 0.1, tenant="a", priority=1)
    for number in range(100):
        submit(cluster, f"high{number}", number * 0.004, tenant="a")
    cluster.clock.run(10.0)
    order = finished(cluster)
    before = order[: order.index("low")]
    assert "high40" in before, "a better one that came later passed it"
    assert len(before) < 90, "those that came much later did not"
    check_clean(cluster)


def test_what_cannot_be_in_time_is_not_kept_until_it_is_too_late() -> None:
    cluster = make_cluster(2)
    for number in range(60):
        submit(cluster, f"r{number}", number * 0.003, tenant="a", ttft_s=0.1)
    cluster.clock.run(10.0)
    counts = cluster.router.core.admission.num_by_outcome
    assert counts[AdmissionOutcome.ADMITTED] == len(finished(cluster)) > 0
    assert counts[AdmissionOutcome.SLO_TTFT] > 0
    check_clean(cluster)
