"""Seeded runs of router, prefill and decode cores over a bad network, checked against undisturbed tokens."""

from __future__ import annotations

from random import Random
from typing import Any, Final

import pytest

from baton_core.errors import ErrorCode
from baton_core.kv_spec import KVGroup, KVSpec
from baton_core.lease_table import HoldTimings
from baton_core.placement import PlacementConfig, SplitMode
from baton_core.request_flow import FlowLimits
from baton_core.router_core import RouterConfig
from baton_core.router_events import FailRequest, FinishRequest
from baton_core.router_messages import RequestSpec
from baton_core.sampling_params import SamplingParams
from baton_core.scheduler_config import SchedulerConfig, SchedulingPolicy
from baton_core.transfer import PullTimings
from baton_core.worker_config import WorkerConfig
from baton_core.worker_info import ModelIdentity, Role, WorkerInfo
from tests.sim.checks import check_clean
from tests.sim.cluster import Cluster, Faults, Outcome
from tests.sim.hash_engine import VOCAB_SIZE, HashEngine, Windows, expected_tokens

BLOCK_SIZE = 4
ONE_KIND: Final[Windows] = (None,)
TWO_KINDS: Final[Windows] = (None, 6, 13)
"""Windows shorter and longer than a block, no multiples of it."""
CHUNK = 24


def make_spec(windows: Windows) -> KVSpec:
    groups = tuple(KVGroup(layers=(layer,), window=window) for layer, window in enumerate(windows))
    return KVSpec(
        num_layers=1, num_kv_heads=1, head_dim=1, block_size=BLOCK_SIZE, dtype="float32", groups=groups
    )


def start_worker(
    cluster: Cluster,
    name: str,
    role: Role,
    *,
    epoch: int = 1,
    num_blocks: int,
    has_checksums: bool,
    windows: Windows = ONE_KIND,
    longest: int = 160,
) -> HashEngine:
    spec = make_spec(windows)
    identity = ModelIdentity(
        model="m", dtype="f", kv_layout="l", block_size=BLOCK_SIZE, transport="sim", kv_windows=windows
    )
    config = WorkerConfig(
        worker_id=name,
        epoch=epoch,
        identity=identity,
        kv_spec=spec,
        num_blocks=num_blocks,
        max_model_len=spec.paging.max_tokens(num_blocks, CHUNK, limit=longest),
        vocab_size=VOCAB_SIZE,
        eos_token_ids=frozenset(),
        is_verified_by_checksum=has_checksums,
        pull=PullTimings(lease_s=2.0, renew_s=0.5, pull_deadline_s=1.6),
        hold=HoldTimings(hold_s=3.0),
        scheduler=SchedulerConfig(
            max_num_seqs=8,
            max_num_batched_tokens=CHUNK,
            policy=SchedulingPolicy.PRIORITY,
            max_num_partial_prefills=2,
            long_prefill_token_threshold=CHUNK // 2,
        ),
    )
    info = WorkerInfo(
        worker_id=name,
        epoch=epoch,
        role=role,
        identity=identity,
        max_model_len=config.max_model_len,
        vocab_size=VOCAB_SIZE,
        num_blocks=num_blocks,
        max_num_seqs=8,
        peer_address=name,
        kv_description=b"",
    )
    engine = HashEngine(num_blocks, spec.paging)
    cluster.start(info, config, engine)
    return engine


def make_cluster(
    seed: int, *, faults: Faults, split: SplitMode = SplitMode.ALWAYS, windows: Windows = ONE_KIND
) -> Cluster:
    rng = Random(seed)
    placement = PlacementConfig(split=split, min_split_tokens=16)
    router = RouterConfig(limits=FlowLimits(placement=placement))
    cluster = Cluster(seed, faults=faults, router=router, pull_delay_s=rng.choice([0.002, 0.05, 0.5]))
    has_checksums = rng.random() < 0.5
    num_blocks = rng.choice([40, 60, 120]) + 20 * (len(windows) - 1)
    shape: dict[str, Any] = {"num_blocks": num_blocks, "has_checksums": has_checksums, "windows": windows}
    start_worker(cluster, "p", Role.PREFILL, **shape)
    start_worker(cluster, "d", Role.DECODE, **shape)
    return cluster


def submit_some(cluster: Cluster, seed: int, *, num_requests: int, cancelled: float = 0.0) -> None:
    """Requests at random moments, many with a shared prefix, some cancelled at random moments."""
    rng = Random(seed + 1)
    shared = tuple(rng.randrange(VOCAB_SIZE) for _ in range(60))
    for number in range(num_requests):
        own = tuple(rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(1, 50)))
        prompt = shared[: rng.choice([0, 8, 31, 60])] + own
        params = SamplingParams(n=rng.choice([1, 1, 1, 3]), seed=number, max_tokens=rng.choice([1, 2, 9, 20]))
        spec = RequestSpec(
            request_id=f"q{number}",
            prompt_token_ids=prompt,
            params=params,
            priority=rng.choice([0, 0, 1]) if seed % 2 else 0,
        )
        at_s = rng.uniform(0, 1.0)
        cluster.clock.after(at_s, lambda s=spec: cluster.router.submit(s, timeout_s=60.0))
        if rng.random() < cancelled:
            cluster.clock.after(at_s + rng.uniform(0, 0.5), lambda s=spec: cluster.cancel(s.request_id))


def check_tokens(outcome: Outcome, windows: Windows = ONE_KIND) -> None:
    """Exactly one end; every token is the undisturbed run's, and all of them are there after a finish."""
    params, prompt = outcome.spec.params, outcome.spec.prompt_token_ids
    assert len(outcome.ends) == 1, f"{outcome.spec.request_id} ended {len(outcome.ends)} times"
    for index in range(params.n):
        tokens = outcome.tokens.get(index, [])
        assert tokens == expected_tokens(prompt, params, index, len(tokens), windows)
        if isinstance(outcome.ends[0], FinishRequest):
            assert len(tokens) == params.max_tokens


def test_one_request_travels_from_prefill_to_decode() -> None:
    cluster = make_cluster(0, faults=Faults())
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
    cluster = Cluster(0, faults=Faults(), router=router)
    shape: dict[str, Any] = {"num_blocks": 480, "has_checksums": False, "windows": windows}
    engine = start_worker(cluster, "m", Role.MIXED, longest=1100, **shape)
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


@pytest.mark.parametrize(
    ("seed", "windows"),
    [*((seed, ONE_KIND) for seed in range(80)), *((seed, TWO_KINDS) for seed in range(24))],
)
def test_tokens_survive_a_bad_network(seed: int, windows: Windows) -> None:
    faults = Faults(
        loss=0.05,
        repeat=0.1,
        session_loss=0.002,
        max_delay_s=0.1,
        pull_failure=0.02,
        is_abort_safe=seed % 2 == 0,
    )
    split = SplitMode.ALWAYS if seed % 3 else SplitMode.AUTO
    cluster = make_cluster(seed, faults=faults, split=split, windows=windows)
    submit_some(cluster, seed, num_requests=16, cancelled=0.25)
    cluster.clock.run(90.0)
    for outcome in cluster.router.outcomes.values():
        check_tokens(outcome, windows)
        (end,) = outcome.ends
        assert isinstance(end, FinishRequest) or end.code is ErrorCode.CANCELLED, end
    check_clean(cluster)


@pytest.mark.parametrize(
    ("seed", "windows"),
    [*((seed, ONE_KIND) for seed in range(40)), *((seed, TWO_KINDS) for seed in range(12))],
)
def test_every_request_ends_when_a_worker_dies_and_returns(seed: int, windows: Windows) -> None:
    faults = Faults(loss=0.02, repeat=0.05, session_loss=0.001, max_delay_s=0.05)
    cluster = make_cluster(seed, faults=faults, windows=windows)
    submit_some(cluster, seed, num_requests=12)
    victim = "p" if seed % 2 else "d"
    role = cluster.workers[victim].info.role
    config = cluster.workers[victim].core.config

    def restart() -> None:
        start_worker(
            cluster,
            victim,
            role,
            epoch=2,
            num_blocks=config.num_blocks,
            has_checksums=config.is_verified_by_checksum,
            windows=windows,
        )

    cluster.clock.after(Random(seed).uniform(0.1, 1.0), lambda: cluster.kill(victim))
    cluster.clock.after(5.0, restart)
    late = RequestSpec(
        request_id="late", prompt_token_ids=(1, 2, 3) * 9, params=SamplingParams(max_tokens=4, seed=1)
    )
    cluster.clock.after(6.0, lambda: cluster.router.submit(late, timeout_s=30.0))
    cluster.clock.run(90.0)
    for outcome in cluster.router.outcomes.values():
        check_tokens(outcome, windows)
        (end,) = outcome.ends
        if isinstance(end, FailRequest):
            assert end.code in (ErrorCode.WORKER_LOST, ErrorCode.UNAVAILABLE), end
    assert isinstance(cluster.router.outcomes["late"].ends[0], FinishRequest)
    check_clean(cluster)
