"""Free memory under the limits of either cgroup version, from files laid out as the kernel does."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton_kv.host_memory import available_bytes

MIB = 1 << 20


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "proc/meminfo", f"MemTotal: {4000 * 1024} kB\nMemAvailable: {1000 * 1024} kB")
    return tmp_path


def write_v2(folder: Path, limit: object, used_mib: int, inactive_mib: int = 0) -> None:
    write(folder / "memory.max", limit)
    write(folder / "memory.current", used_mib * MIB)
    write(folder / "memory.stat", f"anon 1\ninactive_file {inactive_mib * MIB}\nactive_file 5")


def write_v1(folder: Path, limit: int, used_mib: int, inactive_mib: int = 0) -> None:
    write(folder / "memory.limit_in_bytes", limit)
    write(folder / "memory.usage_in_bytes", used_mib * MIB)
    write(folder / "memory.stat", f"cache 1\ntotal_inactive_file {inactive_mib * MIB}")


def test_without_cgroups_the_machine_decides(root: Path) -> None:
    assert available_bytes(root) == 1000 * MIB


def test_v2_limit_less_usage_but_for_page_cache(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/")
    write_v2(root / "sys/fs/cgroup", 600 * MIB, used_mib=350, inactive_mib=50)
    assert available_bytes(root) == 300 * MIB


def test_v2_the_tightest_parent_decides(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/pod/worker")
    write_v2(root / "sys/fs/cgroup/pod/worker", "max", used_mib=100)
    write_v2(root / "sys/fs/cgroup/pod", 500 * MIB, used_mib=400)
    assert available_bytes(root) == 100 * MIB


def test_v2_without_a_limit_the_machine_decides(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/")
    write_v2(root / "sys/fs/cgroup", "max", used_mib=3000)
    assert available_bytes(root) == 1000 * MIB


def test_v1_limit_less_usage_but_for_page_cache(root: Path) -> None:
    write(root / "proc/self/cgroup", "11:cpu,cpuacct:/job\n5:memory:/job\n1:name=systemd:/job")
    write_v1(root / "sys/fs/cgroup/memory/job", 700 * MIB, used_mib=300, inactive_mib=100)
    write_v1(root / "sys/fs/cgroup/memory", 2**63 - 4096, used_mib=3000)
    assert available_bytes(root) == 500 * MIB


def test_v1_a_container_that_sees_the_hosts_path_has_its_limit_at_the_mount(root: Path) -> None:
    write(root / "proc/self/cgroup", "5:memory:/docker/0123abc")
    write_v1(root / "sys/fs/cgroup/memory", 400 * MIB, used_mib=100)
    assert available_bytes(root) == 300 * MIB


def test_usage_above_the_limit_leaves_nothing(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/")
    write_v2(root / "sys/fs/cgroup", 100 * MIB, used_mib=120)
    assert available_bytes(root) == 0


def test_this_machine_has_some_memory() -> None:
    assert available_bytes() > 16 * MIB
