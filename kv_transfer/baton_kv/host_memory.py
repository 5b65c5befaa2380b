"""How much memory this process can still take: what the host has left, and its cgroups allow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

_CGROUP_FILES: Final = {
    "v2": ("memory.max", "memory.current"),
    "v1": ("memory.limit_in_bytes", "memory.usage_in_bytes"),
}


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be allocated now without the kernel killing a process; page cache counts as free.

    Raises:
        OSError: /proc is not mounted below `root`.
    """
    free = [_table(root / "proc/meminfo")["MemAvailable:"] * 1024]
    for folder, version in _cgroups(root):
        limit, usage = (folder / name for name in _CGROUP_FILES[version])
        if limit.exists() and (allowed := limit.read_text().strip()) != "max":
            reclaimable = _table(folder / "memory.stat").get("inactive_file", 0)
            free.append(int(allowed) - int(usage.read_text()) + reclaimable)
    return max(0, min(free))


def _cgroups(root: Path) -> Iterator[tuple[Path, str]]:
    """The memory cgroups that this process is charged to, innermost first."""
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount, version = ("sys/fs/cgroup/memory", "v1") if controllers else ("sys/fs/cgroup", "v2")
        own = Path(path.lstrip("/"))
        for relative in (own, *own.parents):
            yield root / mount / relative, version


def _table(path: Path) -> dict[str, int]:
    """The lines `name number …` of a file."""
    rows = (line.split() for line in path.read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}
