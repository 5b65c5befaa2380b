"""Memory that this process may still use: the machine's free memory and the limits of its cgroups.

Works with cgroup v1 and v2; a container sees its own limits. Linux only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class _CgroupFiles:
    """Names of one cgroup version's files."""

    mount: str
    limit: str
    usage: str
    reclaimable: str
    """Key in memory.stat of the page cache that the kernel gives back before it refuses memory."""


_V1: Final = _CgroupFiles(
    mount="sys/fs/cgroup/memory",
    limit="memory.limit_in_bytes",
    usage="memory.usage_in_bytes",
    reclaimable="total_inactive_file",
)
_V2: Final = _CgroupFiles(
    mount="sys/fs/cgroup", limit="memory.max", usage="memory.current", reclaimable="inactive_file"
)


def available_bytes(root: Path = Path("/")) -> int:
    """Return the least of the machine's available memory and what each enclosing cgroup leaves.

    `root` is where `proc` and `sys` are mounted.
    """
    free_bytes = _host_bytes(root / "proc/meminfo")
    for folder, files in _cgroups(root):
        left = _left_in_cgroup(folder, files)
        if left is not None:
            free_bytes = min(free_bytes, left)
    return free_bytes


def _host_bytes(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise OSError(f"{meminfo} has no MemAvailable")


def _cgroups(root: Path) -> Iterator[tuple[Path, _CgroupFiles]]:
    """Yield this process's memory cgroups with all their parents.

    Inside a container without a cgroup namespace the path is the host's: what of it does not exist is
    skipped, and the mount itself is the container's own group.
    """
    membership = root / "proc/self/cgroup"
    if not membership.exists():
        return
    for line in membership.read_text().splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0":
            files = _V2
        elif "memory" in controllers.split(","):
            files = _V1
        else:
            continue
        relative = Path(path.lstrip("/"))
        for parent in (relative, *relative.parents):
            yield root / files.mount / parent, files


def _left_in_cgroup(folder: Path, files: _CgroupFiles) -> int | None:
    """Return limit less usage, page cache that can be given back not counted; None without a limit."""
    try:
        limit = (folder / files.limit).read_text().strip()
        usage = int((folder / files.usage).read_text())
        stat = (folder / "memory.stat").read_text()
    except FileNotFoundError:
        return None
    if limit == "max":
        return None
    reclaimable = dict(line.split() for line in stat.splitlines()).get(files.reclaimable, "0")
    return max(0, int(limit) - usage + int(reclaimable))
