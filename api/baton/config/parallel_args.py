"""Arguments of the processes that compute one model together, and the rules between them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from baton.config.engine_arg_fields import Part, arg
from baton.config.flags import IMPORTABLE, LAYER_COUNTS, NAME, Range
from baton_core.errors import InvalidConfigError
from baton_core.sessions.worker_info import Role

RAY_ENVIRONMENT: Final = ("HF_*", "HUGGING_FACE_*", "GLOO_*", "NCCL_*", "UCX_*")
"""Environment variables that ranks on Ray get in any case, by name or by the beginning of it."""
EXECUTORS: Final = ("mp", "ray", "uni")
STRATEGIES: Final = ("PACK", "STRICT_PACK", "SPREAD", "STRICT_SPREAD")


@dataclass(kw_only=True)
class ParallelArgs:
    """The part of `EngineArgs` on ranks."""

    tensor_parallel_size: int = arg(
        int, 1, "parts of every layer, each computed by a process of its own", Range(1, 1024)
    )
    pipeline_parallel_size: int = arg(
        int, 1, "stages of layers, each computed by processes of its own", Range(1, 1024)
    )
    prefill_tensor_parallel_size: int | None = arg(
        int, None, "tensor_parallel_size of prefill workers; default: that of all", Range(1, 1024)
    )
    decode_tensor_parallel_size: int | None = arg(
        int, None, "tensor_parallel_size of decode workers; default: that of all", Range(1, 1024)
    )
    pipeline_layer_partition: str | None = arg(
        str, None, "layers of each stage, as 3,5; default: even", LAYER_COUNTS
    )
    enable_expert_parallel: bool = arg(
        bool, False, "divide a mixture by whole experts, instead of each expert's inner dimension"
    )
    expert_placement_strategy: str = arg(
        str,
        "linear",
        "which whole experts are together; linear: neighbours; round_robin: dealt out in turn",
        ("linear", "round_robin"),
    )
    data_parallel_size: int = arg(
        int,
        1,
        "ranks, each with workers of its own that have the whole model; requests may name one",
        Range(1, 1024),
        Part.LAUNCHER,
    )
    data_parallel_rank: int | None = arg(
        int, None, "the one rank that is here; the others are elsewhere", Range(0, 1023)
    )
    data_parallel_size_local: int | None = arg(
        int, None, "ranks that are here; default: all", Range(1, 1024), Part.LAUNCHER
    )
    data_parallel_start_rank: int | None = arg(
        int, None, "number of the first rank that is here", Range(0, 1023), Part.LAUNCHER
    )
    data_parallel_hybrid_lb: bool = arg(
        bool, False, "balance among the ranks that are here alone, as is done anyway", part=Part.LAUNCHER
    )
    data_parallel_external_lb: bool = arg(
        bool, False, "another balancer chooses the rank; needs data_parallel_rank", part=Part.LAUNCHER
    )
    distributed_executor_backend: str | type | None = arg(
        str,
        None,
        "how ranks are started: mp, processes; ray, actors of a Ray cluster; uni, there is one; or a class "
        "as package.module.Class; default: ray inside a placement group of Ray's, else mp or uni",
        NAME,
        takes_function=True,
    )
    rank_pools: str = arg(
        str,
        "shared",
        "KV pools of ranks on one machine: shared, one that all map; apart, each has its own part, as on "
        "several machines. Workers pair only with their like",
        ("shared", "apart"),
    )
    nnodes: int = arg(int, 1, "machines over which the ranks of a worker are divided", Range(1, 1024))
    node_rank: int = arg(
        int, 0, "number of this machine; all but 0 start their ranks alone", Range(0, 1023), Part.LAUNCHER
    )
    master_addr: str = arg(str, "127.0.0.1", "address of machine 0 for the others", NAME)
    master_port: int = arg(
        int,
        29501,
        "port at which the ranks of other machines connect, those of the first worker; the next worker's is "
        "the next one",
        Range(1, 65_535),
    )
    ray_address: str | None = arg(
        str, None, "address of the Ray cluster; default: Ray's own, else a new one here", NAME
    )
    ray_placement_group: str | None = arg(
        str, None, "name of a placement group that exists, with a bundle for each rank", NAME
    )
    ray_placement_strategy: str = arg(str, "PACK", "Ray's strategy for a new placement group", STRATEGIES)
    ray_placement_timeout: float = arg(
        float,
        1800.0,
        "seconds for a placement group to find its place, and for its ranks to start",
        Range(0, 86_400, is_low_open=True),
    )
    ray_environment: Sequence[str] = arg(
        str,
        (),
        f"environment variables that ranks on Ray get besides {', '.join(RAY_ENVIRONMENT)}; repeatable",
        NAME,
        is_list=True,
        metavar="NAME",
    )

    @property
    def local_data_parallel_ranks(self) -> range:
        """Numbers of the data-parallel ranks that are here."""
        if self.data_parallel_rank is not None:
            return range(self.data_parallel_rank, self.data_parallel_rank + 1)
        first = self.data_parallel_start_rank or 0
        return range(first, first + (self.data_parallel_size_local or self.data_parallel_size - first))

    def tensor_parallel_size_of(self, role: Role) -> int:
        """Return the tensor-parallel size of workers of a role."""
        of_role = {
            Role.PREFILL: self.prefill_tensor_parallel_size,
            Role.DECODE: self.decode_tensor_parallel_size,
        }
        return of_role.get(role) or self.tensor_parallel_size

    @property
    def world_size(self) -> int:
        """Ranks of one worker, at most."""
        sizes = (
            self.tensor_parallel_size,
            self.prefill_tensor_parallel_size,
            self.decode_tensor_parallel_size,
        )
        return self.pipeline_parallel_size * max(size or 1 for size in sizes)


def check_parallel(args: Any) -> None:
    """Check the rules between the arguments of ranks; mutates them: a class becomes its name.

    vLLM's `external_launcher`, which trainers give to each of their processes, is `uni` where there is one
    rank.

    Raises:
        InvalidConfigError: naming a field, its value and what is allowed.
    """
    backend = args.distributed_executor_backend
    if isinstance(backend, type):
        backend = args.distributed_executor_backend = f"{backend.__module__}.{backend.__qualname__}"
    if backend == "external_launcher" and args.world_size == 1:
        backend = args.distributed_executor_backend = "uni"
    if backend not in (None, *EXECUTORS) and not re.fullmatch(IMPORTABLE.pattern, str(backend)):
        reason = "; each rank is started by Baton" if backend == "external_launcher" else ""
        allowed = f"{', '.join(EXECUTORS)}, or a class as {IMPORTABLE.words}{reason}"
        raise InvalidConfigError(f"distributed_executor_backend is {backend!r}; allowed: {allowed}")
    if backend == "uni" and args.world_size > 1:
        text = f"distributed_executor_backend is 'uni' with {args.world_size} ranks"
        raise InvalidConfigError(f"{text}; allowed: mp, ray, or 1 rank")
    _check_nodes(args, backend)
    _check_data_parallel(args)
    require_own_group(args, args.prefill_workers + args.decode_workers)


def require_own_group(args: ParallelArgs, num_workers: int) -> None:
    """Refuse a placement group of Ray's that several workers would share.

    Raises:
        InvalidConfigError: naming it.
    """
    is_used = args.ray_placement_group is not None and args.distributed_executor_backend in (None, "ray")
    if is_used and num_workers > 1:
        text = f"ray_placement_group is {args.ray_placement_group!r} with {num_workers} workers"
        raise InvalidConfigError(f"{text}; allowed: none (each of them makes its own), or 1 worker")


def require_even_nodes(args: ParallelArgs, role: Role) -> None:
    """Refuse a worker of a role whose ranks are not as many on each machine.

    Raises:
        InvalidConfigError: naming its ranks.
    """
    num_ranks = args.pipeline_parallel_size * args.tensor_parallel_size_of(role)
    if num_ranks % args.nnodes:
        text = f"nnodes is {args.nnodes} with {num_ranks} ranks of a {role} worker"
        raise InvalidConfigError(f"{text}; allowed: a divisor of {num_ranks}")


def _check_nodes(args: Any, backend: str | None) -> None:
    if args.node_rank >= args.nnodes:
        allowed = f"0 to {args.nnodes - 1}, with nnodes {args.nnodes}"
        raise InvalidConfigError(f"node_rank is {args.node_rank}; allowed: {allowed}")
    if args.nnodes == 1:
        return
    if backend not in (None, "mp"):
        text = f"nnodes is {args.nnodes} with distributed_executor_backend {backend!r}"
        raise InvalidConfigError(f"{text}; allowed: 1, or mp (Ray places ranks on the nodes of its cluster)")
    if args.world_size % args.nnodes:
        text = f"nnodes is {args.nnodes} with {args.world_size} ranks"
        raise InvalidConfigError(
            f"{text}; allowed: a divisor of tensor_parallel_size * pipeline_parallel_size"
        )


def _check_data_parallel(args: Any) -> None:
    size, rank, local = args.data_parallel_size, args.data_parallel_rank, args.data_parallel_size_local
    if rank is not None and local not in (None, 1):
        text = f"data_parallel_size_local is {local} with data_parallel_rank {rank}"
        raise InvalidConfigError(f"{text}; allowed: 1, or data_parallel_start_rank for several")
    if rank is not None and args.data_parallel_start_rank is not None:
        text = f"data_parallel_start_rank is {args.data_parallel_start_rank} with data_parallel_rank {rank}"
        raise InvalidConfigError(f"{text}; allowed: one of them")
    if args.data_parallel_external_lb and rank is None:
        raise InvalidConfigError(
            "data_parallel_external_lb is True and data_parallel_rank is not given; "
            "allowed: with the rank that is here"
        )
    if args.data_parallel_hybrid_lb and (args.data_parallel_external_lb or rank is not None):
        text = "data_parallel_hybrid_lb is True with an external balancer"
        raise InvalidConfigError(f"{text}; allowed: one of hybrid and external, hybrid without a rank")
    here = args.local_data_parallel_ranks
    if not here or here[-1] >= size > 1:
        text = f"data_parallel_size is {size} with ranks {here.start} to {here.stop - 1} here"
        raise InvalidConfigError(f"{text}; allowed: ranks 0 to {size - 1}")
    if len(here) > 1 and args.nnodes > 1:
        text = f"nnodes is {args.nnodes} with {len(here)} data-parallel ranks here"
        raise InvalidConfigError(f"{text}; allowed: 1 rank, as data_parallel_rank says")
