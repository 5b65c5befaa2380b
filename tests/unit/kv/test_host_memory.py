from __future__ import annotations

from pathlib import Path

from baton_kv.host_memory import available_bytes


def make_host(root: Path, *, cgroup: str, available_kb: int = 1000, **files: str) -> Path:
    """A file tree of /proc and /sys; a file's name has `__` for `/`."""
    proc = root / "proc/self"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text(cgroup)
    (root / "proc/meminfo").write_text(
        f"MemTotal: 9999999 kB\nMemAvailable: {available_kb} kB\nHugePages_Free: 0\n"
    )
    for name, text in files.items():
        file = root / "sys/fs/cgroup" / name.replace("__", "/").replace("memory_", "memory.")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_without_limits_the_host_decides(tmp_path: Path) -> None:
    assert available_bytes(make_host(tmp_path, cgroup="0::/\n")) == 1000 * 1024


def test_the_tightest_cgroup_above_the_process_decides(tmp_path: Path) -> None:
    host = make_host(
        tmp_path,
        cgroup="0::/pods/mine\n",
        pods__mine__memory_max="max\n",
        pods__mine__memory_current="100000\n",
        pods__memory_max="500000\n",
        pods__memory_current="200000\n",
        pods__memory_stat="anon 150000\ninactive_file 4000\n",
    )
    assert available_bytes(host) == 500000 - 200000 + 4000


def test_the_older_hierarchy_counts_as_well(tmp_path: Path) -> None:
    host = make_host(
        tmp_path,
        cgroup="9:name=systemd:/\n4:cpu,memory:/box\n",
        memory__box__memory_limit_in_bytes="300000\n",
        memory__box__memory_usage_in_bytes="299000\n",
        memory__box__memory_stat="cache 5\n",
    )
    assert available_bytes(host) == 1000


def test_a_group_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    host = make_host(
        tmp_path, cgroup="0::/\n", memory_max="10\n", memory_current="20\n", memory_stat="anon 20\n"
    )
    assert available_bytes(host) == 0


def test_this_host_has_some_memory() -> None:
    assert available_bytes() > 1 << 20
