"""How the ranks of a worker are started, as its command line describes it. Loads no torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from baton_core.ranks.rank_layout import ParallelSizes
from baton_service.process import child_environment

LOOPBACK: Final = "127.0.0.1"
VISIBLE_GPUS: Final = "CUDA_VISIBLE_DEVICES"
"""The variable of the environment that tells CUDA which GPUs a process sees."""
DEFAULT_MASTER_PORT: Final = 29501
JOIN_WITHIN_S: Final = 600.0
"""Time for the ranks of all machines to find each other: they may be started by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings:
    """Ranks as actors of a Ray cluster."""

    address: str | None = None
    """Address of the cluster; None is Ray's own default."""
    placement_group: str | None = None
    """Name of a placement group that exists; None: the one that this process runs in, or a new one."""
    strategy: str = "PACK"
    """Strategy of a new placement group, by Ray's name."""
    timeout_s: float = 1800.0
    """Time for a placement group to find its resources, and for the ranks to start."""
    environment: tuple[str, ...] = ()
    """Environment variables that ranks get from the leader, by name, or by its beginning and an asterisk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSettings:
    """The executor of a worker."""

    backend: str = "mp"
    """mp: processes; ray: actors; or a `RankStarter`, as `package.module.Class`."""
    nnodes: int = 1
    """Machines that processes run on."""
    master_addr: str = LOOPBACK
    """Address of the leader's machine at which the others reach it."""
    master_port: int = DEFAULT_MASTER_PORT
    secret: str = field(default="", repr=False)
    """Secret that the ranks of other machines must have, by `secret_of_ranks`; empty: none."""
    ray: RaySettings = field(default_factory=RaySettings)
    has_pools_apart: bool = False
    """True if each rank has a KV pool of its own, also where all could map one."""

    @property
    def shares_pool(self) -> bool:
        """True if all ranks certainly map the leader's KV pool."""
        return self.backend == "mp" and self.nnodes == 1 and not self.has_pools_apart


LOCAL: Final = ExecutorSettings()
"""Processes of this machine."""


def secret_of_ranks(api_keys: Sequence[str]) -> str:
    """Return a secret that is known where the first of these keys is, and does not tell it; empty without."""
    return blake2b(b"ranks", key=blake2b(api_keys[0].encode()).digest()).hexdigest() if api_keys else ""


def started_with(sizes: ParallelSizes, nnodes: int) -> dict[str, str]:
    """Return what all machines must have been given alike, by the names of its flags."""
    return {
        "nnodes": str(nnodes),
        "tensor_parallel_size": str(sizes.tensor),
        "pipeline_parallel_size": str(sizes.pipeline),
    }


def environment_of_gpu(number: int, gpus: Sequence[str] | None) -> dict[str, str]:
    """Return this process's environment for one that sees a single GPU of these; None: of the machine's."""
    names = [*map(str, range(number + 1))] if gpus is None else gpus
    return {**child_environment(), VISIBLE_GPUS: names[number] if number < len(names) else ""}


def visible_gpus() -> list[str] | None:
    """Return the names of the GPUs that this process sees; None where it sees all of the machine."""
    seen = os.environ.get(VISIBLE_GPUS)
    return None if seen is None else [one.strip() for one in seen.split(",") if one.strip()]
