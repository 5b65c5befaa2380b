"""The `baton` command: parses, names the process, runs one thing, turns errors into exit codes.

Each command imports what it runs when it runs: a router must not pay for torch, nor `--help` for either.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final

from baton import PASSIVE_OPENMP
from baton.commands import cli_arguments as arguments
from baton.commands.limit_arguments import (
    admission_settings,
    batch_limits,
    connection_limits,
    response_store_limits,
)
from baton.commands.router_arguments import RESUME_SECRET_VARIABLE
from baton.commands.security_arguments import client_tls, key_of_environment, keys_of, server_tls
from baton.config.engine_args import EngineArgs, default_names
from baton.config.environment import unread_variables
from baton.config.extras import MissingExtraError, check_extras
from baton.processes.cpu_binding import available_cpus, bind, worker_shares
from baton.processes.gpu_binding import bind_gpus
from baton.processes.secret_flags import take_secrets
from baton_core.errors import BatonError
from baton_service.descriptors import open_standard_files, raise_descriptor_limit
from baton_service.logs import configure_logging
from baton_service.process import (
    EXIT_BAD_CONFIG,
    die_with_parent,
    exit_code,
    exit_without_reader,
    importing,
    name_process,
    print_error,
    report,
    report_update,
    run_until_signal,
)
from baton_worker.kv_events.kv_events_config import read_kv_events_config

if TYPE_CHECKING:
    from baton_router.process.http_settings import AnswerSettings, HttpSettings
    from baton_router.requests.request_limits import RequestLimits

_log: Final = logging.getLogger(__name__)
_QUIET_GRPC: Final = ("GRPC_VERBOSITY", "NONE")
"""This silences gRPC, which logs each failed handshake past Baton's format and limits."""


def main(argv: Sequence[str] | None = None, *, defaults: arguments.Defaults = arguments.no_defaults) -> int:
    """Run one command, with these defaults of its fields; returns its exit code (2: a setting is wrong)."""
    open_standard_files()
    with exit_without_reader():
        return _run(argv, defaults)


def _run(argv: Sequence[str] | None, defaults: arguments.Defaults) -> int:
    try:
        args = arguments.parse([*(sys.argv[1:] if argv is None else argv), *take_secrets()], defaults)
    except BatonError as error:
        print_error(f"baton: {error}")
        return exit_code(error)
    try:
        if args.parent_pid:
            die_with_parent(args.parent_pid)
        configure_logging(args.command, args.log_format, args.log_level, names=arguments.process_names(args))
        if args.command in arguments.SERVING and not args.parent_pid:
            _name_what_is_not_read(args)
        name_process(args.command)
        raise_descriptor_limit()
        check_extras(args)
        if args.command != "as-vllm":  # whose command has an environment of its own
            os.environ.setdefault(*_QUIET_GRPC)
        return _COMMANDS.get(args.command, _run_module)(args)
    except BatonError as error:
        text = arguments.as_flags(str(error))
        print_error(f"baton {args.command}: {text}")
        report_update(args.report_fd, error=text)
        return exit_code(error)
    except MissingExtraError as error:
        print_error(str(error))
        return EXIT_BAD_CONFIG
    except KeyboardInterrupt:
        return 130


def _name_what_is_not_read(args: argparse.Namespace) -> None:
    """Log what was given and changes nothing, once."""
    if args.neutral_flags:
        _log.info("these flags change nothing here: %s", ", ".join(args.neutral_flags))
    if variables := unread_variables():
        _log.warning("these variables of the environment are not read: %s", ", ".join(variables))


def _serve(args: argparse.Namespace) -> int:
    from baton.config.launch_checks import check_machine, check_worker_settings, worker_gpus
    from baton.processes.launcher import LocalCluster, serve

    engine = EngineArgs.from_cli_args(args)
    check_worker_settings(engine)
    check_machine(engine, args)
    if args.node_rank:
        return _follow(engine, args)
    arguments.settle(args)
    ranks = engine.local_data_parallel_ranks
    num_workers = (args.prefill_workers + args.decode_workers + args.mixed) * len(ranks)
    cluster = LocalCluster(
        router_args=arguments.router_flags(args),
        num_routers=args.router_processes,
        worker_args=arguments.worker_flags(args, num_workers=num_workers),
        cpu_shares=tuple(worker_shares(args.cpu_bind, num_workers, available_cpus())),
        gpu_shares=tuple(worker_gpus(engine, args)),
        num_prefill_workers=args.prefill_workers,
        num_decode_workers=args.decode_workers,
        num_mixed_workers=args.mixed,
        data_parallel_ranks=ranks,
        metrics_port=args.metrics_port,
        rank_address=_rank_address(engine),
        kv_events=read_kv_events_config(args.kv_events_config),
        report_fd=args.report_fd,
        model_name=args.served_model_name[0] if args.served_model_name else args.model,
        is_pooling=not (args.decode_workers or args.mixed) and _pools(engine),
        is_encrypted=bool(args.ssl_certfile),
        shutdown_timeout_s=arguments.shutdown_timeout_s(args),
    )
    return asyncio.run(run_until_signal(serve(cluster), ends_with_stdin=args.exit_with_stdin)) or 0


def _pools(engine: EngineArgs) -> bool:
    from baton.config.engine_folders import pools  # imports the Hub's client, which few launchers need

    return pools(engine)


def _rank_address(engine: EngineArgs) -> tuple[str, int] | None:
    from baton_service.reachability import resolve

    if engine.nnodes == 1:
        return None
    return resolve(engine.master_addr, "", "--master-addr"), engine.master_port


def _follow(engine: EngineArgs, args: argparse.Namespace) -> int:
    from baton.config.launch_checks import roles_of, worker_gpus
    from baton.processes.rank_node import RankNode, serve_ranks
    from baton_core.ranks.rank_layout import ParallelSizes
    from baton_worker.ranks.executor_settings import secret_of_ranks

    shares = worker_gpus(engine, args)
    nodes = [
        RankNode(
            sizes=ParallelSizes(
                tensor=engine.tensor_parallel_size_of(role), pipeline=engine.pipeline_parallel_size
            ),
            nnodes=engine.nnodes,
            node_rank=engine.node_rank,
            master_addr=engine.master_addr,
            master_port=engine.master_port + number,
            secret=secret_of_ranks(keys_of(args)),
            gpus=shares[number].gpus,
        )
        for number, role in enumerate(roles_of(args))
    ]
    return asyncio.run(run_until_signal(serve_ranks(nodes))) or 0


def _worker(args: argparse.Namespace) -> int:
    os.environ.setdefault(*PASSIVE_OPENMP)
    num_cpus = bind(args.cpu_bind)
    bind_gpus(args.gpu_bind)
    os.nice(args.niceness)
    with importing():
        from baton.config.worker_parts import worker_settings
        from baton.processes.plugins import load_plugins
        from baton_core.sessions.worker_info import Role
        from baton_service.redis.redis_settings import RedisSettings
        from baton_worker.worker_process import run_worker

    load_plugins()
    settings = worker_settings(
        EngineArgs.from_cli_args(args),
        num_workers=args.num_workers,
        num_gpu_workers=args.gpu_workers,
        role=Role(args.command.removesuffix("-worker")),
        routers=tuple(args.router),
        redis=RedisSettings(url=args.redis, namespace=args.redis_namespace),
        worker_id=args.worker_id or "",
        session_timeout_s=args.session_timeout,
        peer_address=args.peer_address,
        kv_port=args.kv_port,
        advertise_host=args.advertise_host,
        num_threads=args.num_threads or num_cpus,
        metrics_port=args.metrics_port,
        health_port=args.health_port,
        tls=client_tls(args),
        api_keys=keys_of(args),
        open_metrics=args.open_metrics,
        encrypts_peers=args.peer_encryption,
        shutdown_timeout_s=arguments.shutdown_timeout_s(args),
    )
    run_worker(settings)
    return 0


def _router(args: argparse.Namespace) -> int:
    from baton_router.group.member import Member
    from baton_router.main import run_router
    from baton_router.process.logged_requests import LoggedRequests
    from baton_router.process.router_settings import RouterSettings
    from baton_service.redis.redis_settings import RedisSettings
    from baton_service.tracing import read_tracing

    num_processes = args.router_processes
    settings = RouterSettings(
        model=args.model,
        num_processes=num_processes,
        member=Member.read(args.group_member, num_processes) if args.group_member else None,
        shown_model=default_names(args.model)[0],
        tokenizer=args.tokenizer,
        hf_overrides=args.hf_overrides or {},
        max_lora_rank=args.max_lora_rank if args.enable_lora else None,
        lora_modules=args.lora_modules or (),
        host=args.host,
        port=args.port,
        uds=args.uds or "",
        grpc_host=args.grpc_host,
        grpc_port=args.grpc_port,
        picker_port=args.picker_port,
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
        seed=args.seed,
        log_requests=LoggedRequests(is_on=args.enable_log_requests, max_length=args.max_log_len),
        resume_secret=args.resume_secret or key_of_environment(RESUME_SECRET_VARIABLE),
        limits=_request_limits(args),
        admission=admission_settings(args),
        http=_http_settings(args),
        tls=server_tls(args),
        tracing=read_tracing(args.otlp_traces_endpoint, args.otlp_traces_protocol, args.trace_sample_ratio),
        log_format=args.log_format,
        log_level=args.log_level,
    )
    if num_processes > 1 and settings.member is None:
        return _router_group(args)
    return run_router(
        settings,
        lambda bound: report(args.report_fd, address=bound.grpc, http_address=bound.http),
        lambda status: report_update(
            args.report_fd, is_ready=status.is_ready, num_workers=dict(status.num_workers)
        ),
        workers_fd=args.workers_fd,
    )


def _router_group(args: argparse.Namespace) -> int:
    from baton.processes.router_group import STOP_WITHIN_S, serve_group

    stop_within_s = arguments.shutdown_timeout_s(args) + STOP_WITHIN_S
    group = serve_group(arguments.router_flags(args), args.router_processes, stop_within_s, args.report_fd)
    return asyncio.run(run_until_signal(group)) or 0


def _request_limits(args: argparse.Namespace) -> RequestLimits:
    from baton_router.requests.request_limits import RequestLimits

    return RequestLimits(
        max_logprobs=args.max_logprobs,
        max_n_sequences=args.max_n_sequences,
        max_answer_bytes=args.max_answer_bytes,
        stream_interval=args.stream_interval,
        logits_processors=args.logits_processors,
        enable_prompt_embeds=args.enable_prompt_embeds,
        trust_request_chat_template=args.trust_request_chat_template,
        structured_outputs_backend=args.structured_outputs_backend,
    )


def _http_settings(args: argparse.Namespace) -> HttpSettings:
    from baton_router.process.http_settings import HttpSettings

    return HttpSettings(
        api_keys=keys_of(args),
        open_metrics=args.open_metrics,
        shared_prefix_cache=args.shared_prefix_cache,
        max_body_bytes=args.max_body_bytes,
        strict_fields=args.strict_fields,
        connections=connection_limits(args),
        stored_responses=response_store_limits(args),
        batches=batch_limits(args),
        root_path=args.root_path or "",
        enable_operator_routes=args.enable_operator_routes,
        enable_lora_updates=args.enable_lora_updates,
        enable_tokenizer_info=args.enable_tokenizer_info_endpoint,
        allowed_origins=args.allowed_origins,
        allow_credentials=args.allow_credentials,
        allowed_methods=args.allowed_methods,
        allowed_headers=args.allowed_headers,
        middleware=args.middleware,
        serves_docs=not args.disable_fastapi_docs,
        answers=_answer_settings(args),
        enable_auto_tool_choice=args.enable_auto_tool_choice,
        tool_call_parser=args.tool_call_parser,
        reasoning_parser=args.reasoning_parser,
        tool_parser_plugin=args.tool_parser_plugin,
        reasoning_parser_plugin=args.reasoning_parser_plugin,
    )


def _answer_settings(args: argparse.Namespace) -> AnswerSettings:
    from baton_router.process.http_settings import AnswerSettings
    from baton_router.text.chat_template import ChatDefaults

    return AnswerSettings(
        chat=ChatDefaults(
            template_arguments=args.default_chat_template_kwargs or {},
            content_format=args.chat_template_content_format,
        ),
        response_role=args.response_role,
        excludes_unused_tools=args.exclude_tools_when_tool_choice_none,
        names_token_ids=args.return_tokens_as_token_ids,
        includes_usage=args.enable_force_include_usage,
        keep_alive_s=args.sse_keep_alive_interval,
    )


def _bench(args: argparse.Namespace) -> int:
    module = "bench" if args.benchmark in ("serve", "sweep") else "bench_offline"
    return _run_module(args, module, f"bench_{args.benchmark}")


def _collect_env(args: argparse.Namespace) -> int:
    from baton.commands.environment_report import environment_report

    sys.stdout.write(environment_report())
    return 0


def _run_module(args: argparse.Namespace, module: str = "", function: str = "") -> int:
    """Run a function of a module of `baton.commands`; by default both have the name of the command."""
    module = module or args.command.replace("-", "_")
    command: Callable[[argparse.Namespace], int] = getattr(
        import_module(f"baton.commands.{module}"), function or module
    )
    return command(args)


_COMMANDS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "serve": _serve,
    "router": _router,
    "prefill-worker": _worker,
    "decode-worker": _worker,
    "mixed-worker": _worker,
    "bench": _bench,
    "collect-env": _collect_env,
}
"""Commands that are more than a module of `baton.commands`."""
