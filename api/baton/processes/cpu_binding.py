"""Which cores a worker computes on: what `--cpu-bind` means, and how `baton serve` shares a machine's cores.

A process is bound before torch is loaded: the threads that it starts stay where it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final

from baton_core.errors import InvalidConfigError
from baton_service.cpu_quota import within_quota

AUTO: Final = "auto"
NONE: Final = "none"
BETWEEN_WORKERS: Final = "|"
OPENMP_THREADS: Final = "OMP_NUM_THREADS"
"""The environment's limit of threads, which torch follows where it is told nothing else."""
MIN_OWN_CORES: Final = 4
"""Fewest cores of a worker of its own; with fewer, all share: one idles while another needs every core."""
_PIECE: Final = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


def available_cpus() -> tuple[int, ...]:
    """The cores that this process may use, ascending."""
    return tuple(sorted(os.sched_getaffinity(0)))


def bind(value: str) -> int:
    """Keep this process to the cores of one worker's `--cpu-bind`; returns its threads, 0 without one.

    Raises:
        InvalidConfigError: it is neither none nor a list of cores that this process may use.
    """
    if value == NONE:
        return 0
    cpus = _read(value, value, available_cpus())
    os.sched_setaffinity(0, cpus)
    return _threads(len(cpus))


def worker_shares(value: str, num_workers: int, available: Sequence[int]) -> list[tuple[str, int]]:
    """Return each worker's own `--cpu-bind` and its threads.

    Raises:
        InvalidConfigError: `value` is neither auto, none, nor a list of cores for each worker.
    """
    num_used = within_quota(len(available))
    if value == AUTO and 0 < MIN_OWN_CORES * num_workers <= num_used:
        size, num_threads = len(available) // num_workers, _threads(num_used // num_workers)
        starts = range(0, size * num_workers, size)
        return [(",".join(map(str, available[start : start + size])), num_threads) for start in starts]
    if value in (AUTO, NONE):
        return [(NONE, _threads(num_used))] * num_workers
    lists = value.split(BETWEEN_WORKERS)
    if len(lists) != num_workers:
        raise InvalidConfigError(
            f"cpu_bind is {value!r}, which is for {len(lists)} workers; allowed: auto, none, or a list of "
            f"cores for each of the {num_workers} workers, separated by {BETWEEN_WORKERS}"
        )
    return [(text, _threads(len(_read(text, value, available)))) for text in lists]


def _threads(num_cores: int) -> int:
    """Return the threads for so many cores: fewer where the environment or control groups limit them."""
    given = re.match(r"[1-9]\d{0,3}\b", os.environ.get(OPENMP_THREADS, ""))
    return within_quota(min(num_cores, int(given[0]) if given else num_cores))


def _read(text: str, value: str, available: Sequence[int]) -> list[int]:
    """The cores of one list, such as 0-3,8; `value` is what it is part of."""
    cpus: set[int] = set()
    for piece in text.split(","):
        match = _PIECE.fullmatch(piece.strip())
        span = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
        if not span or not set(span) <= set(available):
            raise InvalidConfigError(
                f"cpu_bind is {value!r}; allowed: auto for `baton serve`, none, or lists such as 0-3,8 of "
                f"the cores {_shown(available)}"
            )
        cpus.update(span)
    return sorted(cpus)


def _shown(cpus: Sequence[int]) -> str:
    """Ascending cores in short: 0-3,8."""
    spans: list[list[int]] = []
    for cpu in cpus:
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)
