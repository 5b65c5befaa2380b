"""The share of the cores' time that control groups give this process.

Containers limit time and leave all cores visible: threads above the limit only use it up sooner.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

_MOUNTS: Final = Path("/sys/fs/cgroup")
_OWN_GROUPS: Final = Path("/proc/self/cgroup")


def within_quota(num_threads: int) -> int:
    """Return so many threads, or as many as the control groups give time."""
    return min(num_threads, cpu_quota() or num_threads)


def cpu_quota() -> int:
    """Return the cores' worth of time that the control groups allow, rounded up; 0 without a limit.

    A container may see its own group as the root or below the host's path: each folder upwards is asked.
    """
    quotas = []
    for line in _read(_OWN_GROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, limit_of = _MOUNTS, _limit_v2
        elif "cpu" in controllers.split(","):
            root, limit_of = _MOUNTS / "cpu", _limit_v1
        else:
            continue
        folder = root / path.lstrip("/")
        quotas += [limit_of(each) for each in (folder, *folder.parents) if each.is_relative_to(root)]
    return math.ceil(min(filter(None, quotas), default=0))


def _limit_v2(folder: Path) -> float:
    return _share(*_read(folder / "cpu.max").split())


def _limit_v1(folder: Path) -> float:
    return _share(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _share(quota: str = "", period: str = "") -> float:
    """Return the cores' worth of time; 0 for none, which is "max", -1 or no file."""
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else 0.0


def _read(path: Path) -> str:
    try:
        return os.fsdecode(path.read_bytes()).strip()
    except OSError:
        return ""
