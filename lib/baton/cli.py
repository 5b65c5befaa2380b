"""The `baton` command: parses, names the process, runs one thing, turns errors into exit codes.

Each command imports what it runs when it runs: a router must not pay for torch, nor `--help` for either.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

from baton import PASSIVE_OPENMP
from baton import cli_arguments as arguments
from baton.process import (
    die_with_parent,
    exit_code,
    name_process,
    quiet_without_reader,
    report,
    run_until_signal,
)
from baton_core.errors import BatonError
from baton_service.logs import configure_logging


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (2: a setting is wrong)."""
    with quiet_without_reader():
        return _run(argv)


def _run(argv: Sequence[str] | None) -> int:
    try:
        args = arguments.parse(argv)
    except BatonError as error:
        sys.stderr.write(f"baton: {error}\n")
        return exit_code(error)
    try:
        if args.parent_pid:
            die_with_parent(args.parent_pid)
        configure_logging(args.command, args.log_format, args.log_level)
        name_process(args.command)
        return _COMMANDS[args.command](args)
    except BatonError as error:
        sys.stderr.write(f"baton {args.command}: {arguments.as_flags(str(error))}\n")
        return exit_code(error)
    except KeyboardInterrupt:
        return 130


def _serve(args: argparse.Namespace) -> int:
    from baton.launcher import LocalCluster, serve

    num_workers = args.prefill_workers + args.decode_workers + args.mixed
    cluster = LocalCluster(
        router_args=arguments.router_flags(args),
        worker_args=arguments.worker_flags(args, num_workers=num_workers, num_cores=os.cpu_count() or 1),
        num_prefill_workers=args.prefill_workers,
        num_decode_workers=args.decode_workers,
        num_mixed_workers=args.mixed,
        report_fd=args.report_fd,
    )
    return asyncio.run(run_until_signal(serve(cluster), ends_with_stdin=args.exit_with_stdin)) or 0


def _worker(args: argparse.Namespace) -> int:
    os.environ.setdefault(*PASSIVE_OPENMP)
    from baton.worker_process import WorkerSettings, run_worker
    from baton_core.scheduler_config import SchedulerConfig, parse_policy
    from baton_core.worker_info import Role
    from baton_engine.loading import EngineSettings
    from baton_engine.sizing import KVCacheSettings
    from baton_kv.transport import Transport

    kv_cache = KVCacheSettings(
        kv_cache_memory_bytes=args.kv_cache_memory_bytes,
        memory_share=args.gpu_memory_utilization,
        num_workers=args.num_workers,
        max_model_len=args.max_model_len,
        max_num_batched_tokens=args.max_num_batched_tokens,
    )
    settings = WorkerSettings(
        role=Role(args.command.removesuffix("-worker")),
        engine=EngineSettings(
            model=args.model,
            dtype=args.dtype,
            device=args.device,
            block_size=args.block_size,
            kv_cache=kv_cache,
            max_num_seqs=args.max_num_seqs,
            enforce_eager=args.enforce_eager,
        ),
        routers=tuple(args.router),
        worker_id=args.worker_id or "",
        peer_address=args.peer_address,
        advertise_host=args.advertise_host,
        kv_transport=Transport(args.kv_transport),
        scheduler=SchedulerConfig(
            max_num_seqs=args.max_num_seqs,
            max_num_batched_tokens=args.max_num_batched_tokens,
            policy=parse_policy(args.scheduling_policy),
            max_num_partial_prefills=args.max_num_partial_prefills,
            max_long_partial_prefills=args.max_long_partial_prefills,
            long_prefill_token_threshold=args.long_prefill_token_threshold,
        ),
        num_threads=args.num_threads,
    )
    run_worker(settings)
    return 0


def _router(args: argparse.Namespace) -> int:
    from baton_router.main import run_router
    from baton_router.settings import RouterSettings

    settings = RouterSettings(
        model=args.model,
        host=args.host,
        port=args.port,
        served_model_names=args.served_model_name,
        split=args.split,
        min_split_tokens=args.min_split_tokens,
        request_timeout_s=args.request_timeout,
        log_format=args.log_format,
        log_level=args.log_level,
    )
    return run_router(settings, on_bound=lambda address: report(args.report_fd, address=address))


def _complete(args: argparse.Namespace) -> int:
    from baton.complete import complete

    return complete(args)


def _chat(args: argparse.Namespace) -> int:
    from baton.chat import chat

    return chat(args)


def _collect_env(args: argparse.Namespace) -> int:
    from baton.environment_report import environment_report

    sys.stdout.write(environment_report())
    return 0


_COMMANDS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "serve": _serve,
    "router": _router,
    "prefill-worker": _worker,
    "decode-worker": _worker,
    "mixed-worker": _worker,
    "complete": _complete,
    "chat": _chat,
    "collect-env": _collect_env,
}
