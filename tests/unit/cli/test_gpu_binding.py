"""Workers share the GPUs of a machine: each its own, as many as it has ranks, while there are enough."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from baton.config.engine_args import EngineArgs
from baton.config.launch_checks import worker_gpus
from baton.config.worker_parts import worker_settings
from baton.processes.gpu_binding import GpuShare, available_gpus, bind_gpus, gpu_shares
from baton.processes.launcher import LocalCluster, _own_args
from baton_core.errors import InvalidConfigError
from baton_worker.ranks.executor_settings import VISIBLE_GPUS, visible_gpus

FOUR = ("0", "1", "2", "3")


def gpus_of(shares: list[GpuShare]) -> list[str]:
    return [share.value for share in shares]


@pytest.mark.parametrize(
    ("num_ranks", "available", "expected", "num_workers"),
    [
        ([1, 1], FOUR, ["0", "1"], [1, 1]),
        ([2, 2], FOUR, ["0,1", "2,3"], [1, 1]),
        ([1, 2, 1], FOUR, ["0", "1,2", "3"], [1, 1, 1]),
        ([1, 1, 1], ("4", "6"), ["4", "6", "4"], [2, 1, 2]),
        ([2, 2, 1], FOUR[:3], ["0,1", "0,1", "2"], [2, 2, 1]),
        ([4, 1], FOUR[:2], ["none", "none"], [2, 2]),
        ([1, 1], (), ["none", "none"], [2, 2]),
        ([], FOUR, [], []),
    ],
)
def test_workers_take_gpus_in_turn(
    num_ranks: list[int], available: tuple[str, ...], expected: list[str], num_workers: list[int]
) -> None:
    shares = gpu_shares("auto", num_ranks, available)
    assert gpus_of(shares) == expected
    assert [share.num_workers for share in shares] == num_workers


def test_each_worker_gets_the_gpus_it_is_given() -> None:
    shares = gpu_shares("0, 1|1|3", [2, 1, 1], FOUR)
    assert gpus_of(shares) == ["0,1", "1", "3"]
    assert [share.num_workers for share in shares] == [2, 2, 1]
    assert gpu_shares("none", [1, 1], FOUR) == [GpuShare((), 2)] * 2


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("0", "which is for 1 workers; allowed: auto, none, or a list of GPUs for each of the 2 workers"),
        ("0,1|9", "lists of 1 or more of the GPUs 0, 1, 2, 3"),
        ("0|1", "lists of 2 or more of the GPUs 0, 1, 2, 3"),
        ("0,0|1", "lists of 2 or more of the GPUs 0, 1, 2, 3"),
        ("|", "lists of 2 or more of the GPUs 0, 1, 2, 3"),
    ],
)
def test_what_is_no_share_is_refused_with_its_value(value: str, said: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        gpu_shares(value, [2, 1], FOUR)
    assert str(refused.value).startswith(f"gpu_bind is {value!r}")
    assert said in str(refused.value)


def test_the_gpus_of_a_machine_are_those_that_are_visible_or_that_its_driver_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VISIBLE_GPUS, raising=False)
    assert available_gpus(tmp_path / "none") == ()
    for name in ("0000:17:00.0", "0000:65:00.0"):
        (tmp_path / name).mkdir()
    assert available_gpus(tmp_path) == ("0", "1")
    monkeypatch.setenv(VISIBLE_GPUS, "GPU-a,GPU-b,GPU-c")
    assert available_gpus(tmp_path) == ("GPU-a", "GPU-b", "GPU-c")
    bind_gpus("none")
    assert visible_gpus() == ["GPU-a", "GPU-b", "GPU-c"]
    bind_gpus("GPU-c")
    assert visible_gpus() == ["GPU-c"]


def test_a_cluster_hands_each_worker_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE_GPUS, "0,1,2,3,4,5")
    args = argparse.Namespace(prefill_workers=1, decode_workers=2, mixed=0, gpu_bind="auto")
    engine = EngineArgs(tensor_parallel_size=1, decode_tensor_parallel_size=2)
    shares = worker_gpus(engine, args)
    assert gpus_of(shares) == ["0", "1,2", "3,4"]
    cluster = LocalCluster(
        router_args=(),
        worker_args=(),
        num_prefill_workers=1,
        num_decode_workers=2,
        num_mixed_workers=0,
        gpu_shares=tuple(shares),
    )
    assert len(cluster.gpu_shares) == len(cluster.roles)
    assert _own_args(cluster, 1)[-4:] == ["--gpu-bind", "1,2", "--gpu-workers", "1"]
    assert worker_gpus(EngineArgs(device="cpu"), args) == [GpuShare((), 3)] * 3
    by_ray = worker_gpus(EngineArgs(distributed_executor_backend="ray"), args)
    cluster = replace(cluster, gpu_shares=tuple(by_ray))
    assert _own_args(cluster, 0)[-4:] == ["--gpu-bind", "none", "--gpu-workers", "1"]


def test_workers_of_a_gpu_share_its_memory_and_all_of_a_machine_the_cpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def num_sharing() -> int:
        settings = worker_settings(EngineArgs(), num_workers=5, num_gpu_workers=2)
        return settings.engine.kv_cache.num_workers

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert num_sharing() == 5
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert num_sharing() == 2
