"""`LLM` over ranks that are actors of a Ray cluster of two nodes: the same tokens, and one end for all."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from baton import LLM, LLMEngine, initialize_ray_cluster
from baton_core.errors import InvalidConfigError, RequestError
from baton_worker.ranks import ray_cluster
from baton_worker.ranks.executor_settings import VISIBLE_GPUS
from tests.e2e.calls import answer, ask
from tests.e2e.processes import FLOAT32, NO_GRAMMARS, SMALL, children_of, serving, until
from tests.integration.tiny_llm import PROMPT, greedy, tiny_args
from tests.models import make_model, make_prompt

LOST_WITHIN_S = 12.0
NUM_STARTS = 3
NODE: dict[str, Any] = {"num_cpus": 2, "num_gpus": 2, "object_store_memory": 80 << 20}
"""Its GPUs are in Ray's books alone."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("ray") / "model", "gemma3")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes of two CPUs each; this process is on the first."""
    cluster = started()
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def started() -> Cluster:
    """Start the nodes, anew where one does not answer within the 30 s that Ray gives it."""
    for attempt in range(1, NUM_STARTS + 1):
        cluster = Cluster()
        try:
            cluster.add_node(**NODE, include_dashboard=False)
            cluster.add_node(**NODE)
            break
        except Exception:  # Ray raises nothing narrower.
            cluster.shutdown()
            if attempt == NUM_STARTS:
                raise
    return cluster


def over_ray(folder: Path, cluster: Cluster, **changes: Any) -> LLM:
    fields = {
        "tensor_parallel_size": 2,
        "distributed_executor_backend": "ray",
        "ray_address": cluster.address,
        "ray_placement_timeout": 180,
        "ray_placement_strategy": "STRICT_SPREAD",
        "ray_environment": ("BATON_TEST_*",),
    }
    return LLM.from_engine_args(tiny_args(folder, **{**fields, **changes}))


def placed() -> list[str]:
    """States of all placement groups that are not removed."""
    return [one["state"] for one in placement_group_table().values() if one["state"] != "REMOVED"]


def lose(llm: LLM, act: Any) -> None:
    """Have a rank lost while the model computes: the call ends soon, and says why."""
    lost_s: list[float] = []

    def later() -> None:
        lost_s.append(time.monotonic())
        act()

    timer = threading.Timer(0.5, later)
    timer.start()
    with pytest.raises(RequestError, match=r"rank 1 of the model's ranks is lost: its actor failed: Actor"):
        llm.generate([PROMPT] * 200, greedy(200), use_tqdm=False)
    assert time.monotonic() - lost_s[0] < LOST_WITHIN_S
    timer.join()
    llm.close()


def test_actors_give_the_tokens_of_one_process(
    folder: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATON_TEST_NAME", "handed over")
    prompts, params = [PROMPT, make_prompt(9, seed=1)], greedy(12)
    sampled = greedy(12, temperature=0.8, seed=1, n=3)
    with LLM.from_engine_args(tiny_args(folder)) as llm:
        expected = [llm.generate(prompts, one, use_tqdm=False) for one in (params, sampled)]
    with over_ray(folder, cluster) as llm:
        assert llm.get_world_size() == 2
        assert placed() == ["CREATED"]
        for _ in range(2):
            found = [llm.generate(prompts, one, use_tqdm=False) for one in (params, sampled)]
            for ours, theirs in zip(found, expected, strict=True):
                assert [[one.token_ids for one in each.outputs] for each in ours] == [
                    [one.token_ids for one in each.outputs] for each in theirs
                ]
            llm.sleep(1)
            llm.wake_up()
        (_, own), (rank, other) = llm.collective_rpc("tests.integration.asked_functions:process_id")
        assert (own, rank) == (os.getpid(), 1)
        assert other != own
        variable = "tests.integration.asked_functions:variable"
        assert llm.collective_rpc(variable, args=("BATON_TEST_NAME",)) == ["handed over"] * 2
    assert placed() == []


def test_an_actor_that_is_killed_ends_its_group(folder: Path, cluster: Cluster) -> None:
    llm = over_ray(folder, cluster)
    (_, _), (_, pid) = llm.collective_rpc("tests.integration.asked_functions:process_id")
    lose(llm, lambda: os.kill(pid, signal.SIGKILL))
    assert placed() == []


def test_a_place_that_no_node_has_is_refused_in_time(folder: Path, cluster: Cluster) -> None:
    began_s = time.monotonic()
    with pytest.raises(InvalidConfigError, match=r"3 bundles with 1 CPU, STRICT_SPREAD, .* have 2, 2 CPU"):
        over_ray(folder, cluster, tensor_parallel_size=1, pipeline_parallel_size=3, ray_placement_timeout=1.0)
    assert time.monotonic() - began_s < 10.0
    assert placed() == []


def test_initialize_ray_cluster_places_an_engine(folder: Path, cluster: Cluster) -> None:
    config = tiny_args(folder, tensor_parallel_size=2).create_engine_config()
    parallel = config.parallel_config
    initialize_ray_cluster(parallel, cluster.address)
    assert (parallel.use_ray, parallel.placement_group.bundle_count) == (True, 2)
    engine = LLMEngine(config)
    assert engine.collective_rpc("tests.integration.asked_functions:process_id")[1][0] == 1
    engine.close()
    assert placed() == ["CREATED"]
    initialize_ray_cluster(parallel)
    remove_placement_group(parallel.placement_group)
    for bundles, said in (
        ([{"CPU": 1}], "placement_group has 1 bundles with 1 CPU; allowed: at least 2"),
        ([{"CPU": 2}], "placement_group has a bundle with 2 CPU; allowed: at most 1"),
    ):
        group = placement_group(bundles, name="given")
        args = tiny_args(folder, tensor_parallel_size=2, ray_placement_group="given")
        with pytest.raises(ValueError, match=said):
            initialize_ray_cluster(args.create_engine_config().parallel_config)
        remove_placement_group(group)
    args = tiny_args(folder, tensor_parallel_size=2, ray_placement_group="gone")
    with pytest.raises(ValueError, match=r"ray_placement_group is 'gone' .*allowed: the name of a placement"):
        initialize_ray_cluster(args.create_engine_config().parallel_config)


@pytest.mark.exhaustive
def test_serve_starts_prefill_and_decode_workers_over_the_nodes(
    folder: Path, cluster: Cluster, tmp_path: Path
) -> None:
    with LLM.from_engine_args(tiny_args(folder)) as llm:
        (expected,) = llm.generate([PROMPT], greedy(40), use_tqdm=False)
    flags = ("-tp", "2", "--distributed-executor-backend", "ray", "--ray-address", cluster.address)
    apart = ("--ray-placement-strategy", "STRICT_SPREAD", "--split", "always", "--kv-transport", "tcp")
    command = (sys.executable, "-m", "baton", "serve", str(folder))
    with serving(tmp_path, *SMALL, *FLOAT32, *NO_GRAMMARS, *flags, *apart, command=command) as site:
        assert placed() == ["CREATED"] * 2
        for _ in range(2):
            ((output,), _) = answer(site.stub.Generate(ask(PROMPT, greedy(40)), timeout=60.0))
            assert output.token_ids == expected.outputs[0].token_ids
        assert "came over tcp" in site.log.read_text(encoding="utf-8")
        decoding = next(pid for pid, title in children_of(site.process.pid).items() if "decode" in title)
        os.kill(decoding, signal.SIGKILL)
        joined = "worker decode-1 joined"
        until(lambda: site.log.read_text(encoding="utf-8").count(joined) == 2, 120, "another decode worker")
        ((output,), _) = answer(site.stub.Generate(ask(PROMPT, greedy(40)), timeout=120.0))
        assert output.token_ids == expected.outputs[0].token_ids
    until(lambda: placed() == [], 30, "the end of both placement groups")


def test_a_node_that_is_lost_ends_the_groups_on_it(folder: Path, cluster: Cluster) -> None:
    llm = over_ray(folder, cluster)
    (node,) = cluster.worker_nodes
    lose(llm, lambda: cluster.remove_node(node, allow_graceful=False))


def test_the_leader_takes_the_gpu_of_its_bundle(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    ray_cluster.connect(cluster.address)
    group = placement_group([{"GPU": 1.0}] * 2, strategy="STRICT_PACK")
    try:
        assert group.wait(60)
        monkeypatch.delenv(VISIBLE_GPUS, raising=False)
        assert {ray_cluster.own_gpu(group, bundle, 60.0) for bundle in range(2)} == {0, 1}
        number = ray_cluster.own_gpu(group, 1, 60.0)
        monkeypatch.setenv(VISIBLE_GPUS, f"7,{number}")
        assert ray_cluster.own_gpu(group, 1, 60.0) == 1
        monkeypatch.setenv(VISIBLE_GPUS, "7")
        said = rf"bundle 1 of the placement group has GPU {number}; allowed: .* sees, 7"
        with pytest.raises(InvalidConfigError, match=said):
            ray_cluster.own_gpu(group, 1, 60.0)
    finally:
        remove_placement_group(group)
