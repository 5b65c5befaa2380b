"""The cores' worth of time that control groups leave, in both versions of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from baton_core.errors import InvalidConfigError
from baton_core.sessions.worker_info import Role
from baton_engine.engine_settings import EngineSettings
from baton_service import cpu_quota
from baton_service.cpu_quota import within_quota
from baton_worker import worker_process


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/", {"cpu.max": "200000 100000"}, 2),
        ("0::/", {"cpu.max": "150000 100000"}, 2),
        ("0::/", {"cpu.max": "10000 100000"}, 1),
        ("0::/", {"cpu.max": "max 100000"}, 64),
        ("0::/", {"cpu.max": "12800000 100000"}, 64),
        ("0::/system.slice/baton.service", {"system.slice/baton.service/cpu.max": "300000 100000"}, 3),
        (
            "0::/a/b",
            {"cpu.max": "max 100000", "a/cpu.max": "200000 100000", "a/b/cpu.max": "400000 100000"},
            2,
        ),
        (
            "4:memory:/m\n1:cpu,cpuacct:/docker/of-the-host\n0::/",
            {"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"},
            4,
        ),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64),
        ("2:cpuacct:/\n0::/", {}, 64),
        ("0::/gr\udcfc\udcdfe:1", {"gr\udcfc\udcdfe:1/cpu.max": "300000 100000"}, 3),
        ("", {}, 64),
    ],
)
def test_the_least_limit_upwards_counts(
    groups: str, files: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts, own_groups = tmp_path / "mounts", tmp_path / "own"
    own_groups.write_bytes(os.fsencode(groups))
    for name, text in files.items():
        (mounts / name).parent.mkdir(parents=True, exist_ok=True)
        (mounts / name).write_text(text)
    monkeypatch.setattr(cpu_quota, "_MOUNTS", mounts)
    monkeypatch.setattr(cpu_quota, "_OWN_GROUPS", own_groups)
    assert within_quota(64) == expected
    assert within_quota(1) == 1


@pytest.mark.parametrize(("given", "expected"), [(0, 1), (2, 2)])
def test_a_worker_computes_with_the_threads_it_is_given_else_within_the_limit(
    given: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = worker_process.WorkerSettings(
        role=Role.MIXED,
        engine=EngineSettings(model="m"),
        routers=("127.0.0.1:1",),
        peer_address="none",
        num_threads=given,
    )
    before = torch.get_num_threads()
    monkeypatch.setattr(worker_process, "within_quota", lambda num_threads: 1)
    try:
        torch.set_num_threads(2)
        with pytest.raises(InvalidConfigError):
            worker_process.run_worker(settings)
        assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)
