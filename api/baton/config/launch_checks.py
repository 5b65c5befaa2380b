"""Checks of `baton serve` on its workers' settings before it starts anything. They load no torch."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Final

from baton.config.engine_args import EngineArgs
from baton.config.environment import ENVIRONMENT, cpu_kv_cache_bytes
from baton.config.parallel_args import require_even_nodes, require_own_group
from baton.processes.cpu_binding import NONE
from baton.processes.gpu_binding import GpuShare, available_gpus, gpu_shares
from baton_core.errors import InvalidConfigError
from baton_core.sessions.worker_info import Role
from baton_kernels.cpu.variants import AUTO, INSTEAD_OF_AUTO, CpuKernelsError, cpu_flags, require_usable
from baton_service.tracing import read_tracing
from baton_worker.core.scheduler_config import SchedulerConfig, parse_policy
from baton_worker.kv_events.kv_events_config import read_kv_events_config

_MAX_PORT: Final = 65_535


def scheduler_config(args: EngineArgs) -> SchedulerConfig:
    """Return the limits of a worker's steps.

    Raises:
        InvalidConfigError: a value is out of range.
    """
    return SchedulerConfig(
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        policy=parse_policy(args.scheduling_policy),
        max_num_partial_prefills=args.max_num_partial_prefills,
        max_long_partial_prefills=args.max_long_partial_prefills,
        long_prefill_token_threshold=args.long_prefill_token_threshold,
        max_loras=args.max_loras,
    )


def check_worker_settings(args: EngineArgs, environment: Mapping[str, str] = ENVIRONMENT) -> None:
    """Refuse what every worker would refuse, as far as neither its model nor its device has to be asked.

    `environment` is the one that workers are started with.

    Raises:
        InvalidConfigError: naming the field, its value and what is allowed.
    """
    scheduler_config(args)
    read_kv_events_config(args.kv_events_config)
    read_tracing(args.otlp_traces_endpoint, args.otlp_traces_protocol)
    if not args.kv_cache_memory_bytes:
        cpu_kv_cache_bytes(environment)
    if args.device != "cuda":
        _check_cpu_kernels(args.cpu_kernels, "cpu_kernels")
        is_on_cpu = args.device == "cpu" or not available_gpus()
        if is_on_cpu and args.cpu_kernels == AUTO and (instead := environment.get(INSTEAD_OF_AUTO)):
            _check_cpu_kernels(instead, INSTEAD_OF_AUTO)


def _check_cpu_kernels(name: str, setting: str) -> None:
    try:
        require_usable(name, setting, cpu_flags())
    except CpuKernelsError as error:
        raise InvalidConfigError(str(error)) from None


def check_machine(engine: EngineArgs, args: argparse.Namespace) -> None:
    """Refuse workers that the ranks of `engine` cannot be; `args` are those of `baton serve`.

    Raises:
        InvalidConfigError: several workers would share what is one's, or this machine has no ranks to start.
    """
    if args.headless and not args.node_rank:
        text = "headless is True with node_rank 0"
        raise InvalidConfigError(
            f"{text}; allowed: node_rank over 0 (machine 0 has the router and the worker)"
        )
    roles = roles_of(args)
    if engine.nnodes > 1:
        for role in sorted(set(roles)):
            require_even_nodes(engine, role)
        last = engine.master_port + len(roles) - 1
        if last > _MAX_PORT:
            text = f"master_port is {engine.master_port}, the first of {len(roles)} workers' ports"
            raise InvalidConfigError(f"{text}; allowed: at most {engine.master_port + _MAX_PORT - last}")
        return
    require_own_group(engine, len(roles) * len(engine.local_data_parallel_ranks))


def roles_of(args: argparse.Namespace) -> list[Role]:
    """Return the roles of the workers of one data-parallel rank that `baton serve` starts, in their order."""
    counts = {Role.PREFILL: args.prefill_workers, Role.DECODE: args.decode_workers, Role.MIXED: args.mixed}
    return [role for role, count in counts.items() for _ in range(count)]


def worker_gpus(engine: EngineArgs, args: argparse.Namespace) -> list[GpuShare]:
    """Return the GPUs of each worker that `baton serve` starts, in the order of its workers.

    Ray chooses those of its actors, and of the leader: no two workers share one.

    Raises:
        InvalidConfigError: `--gpu-bind` is wrong.
    """
    num_ranks = [
        engine.tensor_parallel_size_of(role) * engine.pipeline_parallel_size // engine.nnodes
        for role in roles_of(args)
        for _ in engine.local_data_parallel_ranks
    ]
    if engine.distributed_executor_backend == "ray":
        return [GpuShare((), 1)] * len(num_ranks)
    return gpu_shares(NONE if engine.device == "cpu" else args.gpu_bind, num_ranks, available_gpus())
