"""Which GPUs a worker computes on: what `--gpu-bind` means, and how `baton serve` shares a machine's GPUs.

A process sees its own alone, from before torch is loaded: each of its ranks takes one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from baton.processes.cpu_binding import AUTO, BETWEEN_WORKERS, NONE
from baton_core.errors import InvalidConfigError
from baton_worker.ranks.executor_settings import VISIBLE_GPUS, visible_gpus

_GPUS_OF_MACHINE: Final = Path("/proc/driver/nvidia/gpus")
"""Where NVIDIA's driver has a folder for each GPU."""


@dataclass(frozen=True, slots=True)
class GpuShare:
    """The GPUs of one worker."""

    gpus: tuple[str, ...]
    """Their names; none leaves the choice to the worker."""
    num_workers: int
    """Workers that share the memory of the one that most share."""

    @property
    def value(self) -> str:
        """The worker's `--gpu-bind`."""
        return ",".join(self.gpus) or NONE


def available_gpus(of_machine: Path = _GPUS_OF_MACHINE) -> tuple[str, ...]:
    """Return the names of the GPUs that this process may use."""
    seen = visible_gpus()
    if seen is not None:
        return tuple(seen)
    return tuple(map(str, range(len(list(of_machine.glob("*"))))))


def bind_gpus(value: str) -> None:
    """Have this process see the GPUs of one worker's `--gpu-bind` alone."""
    if value != NONE:
        os.environ[VISIBLE_GPUS] = value


def gpu_shares(value: str, num_ranks: Sequence[int], available: Sequence[str]) -> list[GpuShare]:
    """Return the share of each of several workers with so many ranks on this machine.

    By `auto` neighbours go to one worker. Where there are fewer GPUs than ranks, workers share them.

    Raises:
        InvalidConfigError: `value` is neither auto, none, nor a list of GPUs for each worker.
    """
    if value == AUTO:
        taken = _taken_in_turn(num_ranks, available)
    elif value == NONE:
        taken = [()] * len(num_ranks)
    else:
        taken = _given(value, num_ranks, available)
    workers_on = Counter(gpu for gpus in taken for gpu in gpus)
    return [GpuShare(gpus, max((workers_on[gpu] for gpu in gpus), default=len(taken))) for gpus in taken]


def _taken_in_turn(num_ranks: Sequence[int], available: Sequence[str]) -> list[tuple[str, ...]]:
    if not available or max(num_ranks, default=0) > len(available):
        return [()] * len(num_ranks)
    taken, at = list[tuple[str, ...]](), 0
    for number in num_ranks:
        at = at if at + number <= len(available) else 0
        taken.append(tuple(available[at : at + number]))
        at += number
    return taken


def _given(value: str, num_ranks: Sequence[int], available: Sequence[str]) -> list[tuple[str, ...]]:
    lists = [tuple(one.strip() for one in text.split(",")) for text in value.split(BETWEEN_WORKERS)]
    if len(lists) != len(num_ranks):
        raise InvalidConfigError(
            f"gpu_bind is {value!r}, which is for {len(lists)} workers; allowed: auto, none, or a list of "
            f"GPUs for each of the {len(num_ranks)} workers, separated by {BETWEEN_WORKERS}"
        )
    for gpus, number in zip(lists, num_ranks, strict=True):
        if not set(gpus) <= set(available) or len(set(gpus)) < max(number, len(gpus)):
            raise InvalidConfigError(
                f"gpu_bind is {value!r}; allowed: auto, none, or lists of {number} or more of the GPUs "
                f"{', '.join(available) or '(there are none)'}"
            )
    return lists
