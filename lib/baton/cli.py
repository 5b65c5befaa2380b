"""The `baton` command: parses, names the process, runs one thing, turns errors into exit codes.

Each command imports what it runs when it runs: a router must not pay for torch, nor `--help` for either.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from baton import PASSIVE_OPENMP
from baton.commands import cli_arguments as arguments
from baton.commands.admission_arguments import admission_settings
from baton.commands.connection_arguments import connection_limits
from baton.commands.required_extras import check_extras
from baton.commands.router_arguments import RESUME_SECRET_VARIABLE
from baton.commands.security_arguments import client_tls, keys_of, server_tls
from baton.config.engine_args import EngineArgs
from baton.extras import MissingExtraError
from baton.kv_events.kv_events_config import read_kv_events_config
from baton.processes.cpu_binding import available_cpus, bind, worker_shares
from baton.processes.process import (
    EXIT_BAD_CONFIG,
    die_with_parent,
    exit_code,
    importing,
    name_process,
    quiet_without_reader,
    report,
    report_on,
    run_until_signal,
)
from baton_core.errors import BatonError
from baton_service.logs import configure_logging

if TYPE_CHECKING:
    from baton_router.http.http_settings import HttpSettings

_QUIET_GRPC: Final = ("GRPC_VERBOSITY", "ERROR")
"""Or it would write of each failed handshake, past the log and its format."""


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
        check_extras(args)
        os.environ.setdefault(*_QUIET_GRPC)
        return _COMMANDS[args.command](args)
    except BatonError as error:
        sys.stderr.write(f"baton {args.command}: {arguments.as_flags(str(error))}\n")
        return exit_code(error)
    except MissingExtraError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_BAD_CONFIG
    except KeyboardInterrupt:
        return 130


def _serve(args: argparse.Namespace) -> int:
    from baton.processes.launcher import LocalCluster, serve

    arguments.settle(args)
    num_workers = args.prefill_workers + args.decode_workers + args.mixed
    cluster = LocalCluster(
        router_args=arguments.router_flags(args),
        worker_args=arguments.worker_flags(args, num_workers=num_workers),
        cpu_shares=tuple(worker_shares(args.cpu_bind, num_workers, available_cpus())),
        num_prefill_workers=args.prefill_workers,
        num_decode_workers=args.decode_workers,
        num_mixed_workers=args.mixed,
        metrics_port=args.metrics_port,
        kv_events=read_kv_events_config(args.kv_events_config),
        report_fd=args.report_fd,
        model_name=args.served_model_name[0] if args.served_model_name else args.model,
        is_encrypted=bool(args.ssl_certfile),
        shutdown_timeout_s=arguments.shutdown_timeout_s(args),
    )
    return asyncio.run(run_until_signal(serve(cluster), ends_with_stdin=args.exit_with_stdin)) or 0


def _worker(args: argparse.Namespace) -> int:
    os.environ.setdefault(*PASSIVE_OPENMP)
    num_cpus = bind(args.cpu_bind)
    with importing():
        from baton.config.worker_parts import worker_settings
        from baton.worker.worker_process import run_worker
        from baton_core.sessions.worker_info import Role
        from baton_service.shared_state.settings import RedisSettings

    settings = worker_settings(
        EngineArgs.from_cli_args(args),
        num_workers=args.num_workers,
        role=Role(args.command.removesuffix("-worker")),
        routers=tuple(args.router),
        redis=RedisSettings(url=args.redis, namespace=args.redis_namespace),
        worker_id=args.worker_id or "",
        session_timeout_s=args.session_timeout,
        peer_address=args.peer_address,
        advertise_host=args.advertise_host,
        num_threads=args.num_threads or num_cpus,
        metrics_port=args.metrics_port,
        tls=client_tls(args),
        api_keys=keys_of(args),
        open_metrics=args.open_metrics,
        encrypts_peers=args.peer_encryption,
        shutdown_timeout_s=arguments.shutdown_timeout_s(args),
    )
    run_worker(settings)
    return 0


def _router(args: argparse.Namespace) -> int:
    from baton_router.main import run_router
    from baton_router.request_limits import RequestLimits
    from baton_router.settings import RouterSettings
    from baton_service.shared_state.settings import RedisSettings
    from baton_service.tracing import read_tracing

    limits = RequestLimits(
        max_logprobs=args.max_logprobs,
        logits_processors=args.logits_processors,
        trust_request_chat_template=args.trust_request_chat_template,
    )
    settings = RouterSettings(
        model=args.model,
        tokenizer=args.tokenizer,
        host=args.host,
        port=args.port,
        grpc_port=args.grpc_port,
        redis=RedisSettings(url=args.redis, namespace=args.redis_namespace),
        advertise_host=args.advertise_host,
        served_model_names=args.served_model_name,
        routing_policy=args.routing_policy,
        split=args.split,
        min_split_tokens=args.min_split_tokens,
        adaptive_roles=args.adaptive_roles,
        check_transfers=args.check_transfers,
        request_timeout_s=args.request_timeout,
        move_timeout_s=args.move_timeout,
        session_timeout_s=args.session_timeout,
        shutdown_timeout_s=arguments.shutdown_timeout_s(args),
        chat_template=args.chat_template,
        generation_config=args.generation_config,
        override_generation_config=args.override_generation_config or {},
        resume_secret=args.resume_secret or os.environ.get(RESUME_SECRET_VARIABLE, ""),
        limits=limits,
        admission=admission_settings(args),
        http=_http_settings(args),
        tls=server_tls(args),
        tracing=read_tracing(args.otlp_traces_endpoint, args.otlp_traces_protocol, args.trace_sample_ratio),
        log_format=args.log_format,
        log_level=args.log_level,
    )
    return run_router(
        settings,
        lambda bound: report(args.report_fd, is_last=False, address=bound.grpc, http_address=bound.http),
        lambda status: report_on(
            args.report_fd, is_ready=status.is_ready, num_workers=dict(status.num_workers)
        ),
    )


def _http_settings(args: argparse.Namespace) -> HttpSettings:
    from baton_router.http.http_settings import HttpSettings

    return HttpSettings(
        api_keys=keys_of(args),
        open_metrics=args.open_metrics,
        shared_prefix_cache=args.shared_prefix_cache,
        max_body_bytes=args.max_body_bytes,
        connections=connection_limits(args),
        root_path=args.root_path or "",
        enable_operator_routes=args.enable_operator_routes,
        allowed_origins=args.allowed_origins,
        allow_credentials=args.allow_credentials,
        allowed_methods=args.allowed_methods,
        allowed_headers=args.allowed_headers,
        enable_auto_tool_choice=args.enable_auto_tool_choice,
        tool_call_parser=args.tool_call_parser,
        reasoning_parser=args.reasoning_parser,
        tool_parser_plugin=args.tool_parser_plugin,
    )


def _complete(args: argparse.Namespace) -> int:
    from baton.commands.complete import complete

    return complete(args)


def _chat(args: argparse.Namespace) -> int:
    from baton.commands.chat import chat

    return chat(args)


def _admin(args: argparse.Namespace) -> int:
    from baton.commands.admin import administer

    return administer(args)


def _kv_events(args: argparse.Namespace) -> int:
    from baton.commands.kv_events import kv_events

    return kv_events(args)


def _explain(args: argparse.Namespace) -> int:
    from baton.commands.explain import explain

    return explain(args)


def _simulate(args: argparse.Namespace) -> int:
    if args.trace is not None:
        from baton_simulator.capacity.command import answer

        return answer(args)
    from baton.commands.simulate import simulate

    return simulate(args)


def _bench(args: argparse.Namespace) -> int:
    if args.benchmark in ("serve", "sweep"):
        from baton.commands.bench import bench_serve, bench_sweep

        return bench_serve(args) if args.benchmark == "serve" else bench_sweep(args)
    from baton.commands.bench_offline import bench_latency, bench_throughput

    return bench_latency(args) if args.benchmark == "latency" else bench_throughput(args)


def _collect_env(args: argparse.Namespace) -> int:
    from baton.commands.environment_report import environment_report

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
    "admin": _admin,
    "explain": _explain,
    "kv-events": _kv_events,
    "simulate": _simulate,
    "bench": _bench,
    "collect-env": _collect_env,
}
