"""A prefill and a decode worker that hash instead of computing, and what their clients must have seen."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from baton_core.sessions.worker_info import Role
from baton_router.core.flow.flow_limits import FlowLimits
from baton_router.core.flow.router_core import RouterConfig
from baton_router.core.placement.placement_config import PlacementConfig, SplitMode
from baton_router.core.router_events import FinishRequest
from baton_simulator.cluster import Cluster
from baton_simulator.conditions import Conditions, Faults
from baton_simulator.hash_engine import ONE_KIND, Windows, expected_tokens
from baton_simulator.members import Shape, start_worker
from baton_simulator.network import Weather
from baton_simulator.outcome import Outcome
from baton_simulator.transports import BACKENDS

CALM = Weather()
NO_FAULTS = Faults()


def make_cluster(
    seed: int,
    *,
    weather: Weather = CALM,
    faults: Faults = NO_FAULTS,
    split: SplitMode = SplitMode.ALWAYS,
    windows: Windows = ONE_KIND,
    is_abort_safe: bool = True,
) -> Cluster:
    rng = Random(seed)
    placement = PlacementConfig(split=split, min_split_tokens=16)
    has_checksums = rng.random() < 0.5
    backend = BACKENDS["shared_memory"]
    cluster = Cluster(
        seed,
        router=RouterConfig(limits=FlowLimits(placement=placement)),
        conditions=Conditions(
            weather=weather,
            faults=faults,
            backend=replace(backend, has_checksums=has_checksums, is_abort_safe=is_abort_safe),
            pull_delays_s=(0.001, rng.choice([0.002, 0.05, 0.5])),
        ),
    )
    num_blocks = rng.choice([40, 60, 120]) + 20 * (len(windows) - 1)
    shape = Shape(num_blocks=num_blocks, has_checksums=has_checksums, windows=windows)
    start_worker(cluster, "p", Role.PREFILL, shape)
    start_worker(cluster, "d", Role.DECODE, shape)
    cluster.run_until_joined()
    return cluster


def check_tokens(outcome: Outcome, windows: Windows = ONE_KIND) -> None:
    """Exactly one end; every token is the undisturbed run's, and all of them are there after a finish."""
    params, prompt = outcome.spec.params, outcome.spec.prompt_token_ids
    assert len(outcome.ends) == 1, f"{outcome.spec.request_id} ended {len(outcome.ends)} times"
    for index in range(params.n):
        tokens = outcome.tokens.get(index, [])
        assert tokens == expected_tokens(prompt, params, index, len(tokens), windows)
        if isinstance(outcome.ends[0], FinishRequest):
            assert len(tokens) == params.max_tokens
