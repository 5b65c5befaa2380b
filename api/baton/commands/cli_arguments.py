"""Commands of `baton` and their flags.

One table per concern, so that `serve` can hand them on to its children.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from baton.commands.bench_arguments import add_benchmarks, bench_flags
from baton.commands.client_arguments import (
    CHAT_FLAGS,
    CLIENT_FLAGS,
    COMPLETE_FLAGS,
    EXPLAIN_FLAGS,
    KV_EVENTS_FLAGS,
    SAMPLING_FLAGS,
    add_actions,
)
from baton.commands.config_file import read_config
from baton.commands.router_arguments import HTTP_FLAGS, ROUTER_FLAGS
from baton.commands.security_arguments import SERVE_SECURITY_FLAGS, WORKER_SECURITY_FLAGS, local_worker_flags
from baton.commands.simulate_arguments import CAPACITY_FLAGS, SIMULATION_FLAGS
from baton.config.engine_arg_fields import Part, flags_of
from baton.config.engine_args import BUNDLED_MODEL, EngineArgs, default_names
from baton.config.fixed_engine_args import take_fixed_flags
from baton.config.flags import ADDRESS, MODEL, NAME, Flag, shown
from baton_core.errors import InvalidConfigError
from baton_core.sessions.session import DEFAULT_TIMINGS
from baton_service.stop_signals import DEFAULT_SHUTDOWN_TIMEOUT_S

_MAX_INT: Final = 2**31 - 1

MODEL_FLAGS: Final = (
    Flag(
        "model",
        str,
        None,
        "a folder or a Hugging Face id; default: the bundled model",
        pattern=MODEL,
        metavar="MODEL",
        nargs="?",
    ),
)
ENGINE_FLAGS: Final = flags_of(EngineArgs, Part.WORKER)
SHARED_FLAGS: Final = flags_of(EngineArgs, Part.BOTH)
"""Flags of routers and workers alike."""
REDIS_FLAGS: Final = (
    Flag(
        "--redis",
        str,
        "",
        "Redis through which routers and workers find each other and routers share what they know, "
        "redis://host:port or rediss://user:password@host:port for TLS; default: none",
        metavar="URL",
    ),
    Flag("--redis-namespace", str, "baton", "name of the cluster in Redis", metavar="NAME"),
)
FLEET_FLAGS: Final = (
    *REDIS_FLAGS,
    Flag(
        "--session-timeout",
        float,
        DEFAULT_TIMINGS.dead_after_s,
        "seconds of silence after which a router and a worker give each other up; longer where processes "
        "wait long for a core",
        low=1,
        high=600,
    ),
)
"""Flags by which routers and workers find each other."""
LOG_FLAGS: Final = (
    Flag("--log-format", str, "text", "text or json", ("text", "json")),
    Flag("--log-level", str, "info", "debug, info, warning or error", ("debug", "info", "warning", "error")),
)
WORKER_PROCESS_FLAGS: Final = (
    Flag(
        "--niceness",
        int,
        5,
        "niceness of the workers: with 1 or more a router on the same machine goes before them",
        low=0,
        high=19,
    ),
)
SERVE_FLAGS: Final = (
    *flags_of(EngineArgs, Part.LAUNCHER),
    Flag("--prefill-workers", int, 1, "prefill workers", low=0, high=1024, metavar="N"),
    Flag("--decode-workers", int, 1, "decode workers", low=0, high=1024, metavar="N"),
    Flag("--mixed", int, 0, "workers that do both", low=0, high=1024, metavar="N"),
    Flag(
        "--metrics-port",
        int,
        None,
        "port of the first worker's /metrics and /health, the next worker's is the next one; 0 takes any; "
        "default: none, and the router tells of the workers",
        low=0,
        high=64_511,
    ),
    Flag(
        "--cpu-bind",
        str,
        "auto",
        "cores of the workers: auto, none, or a list for each, prefill workers first, such as '0-3|4-7'; "
        "auto gives each its own where there are 4 for each, else all share all",
    ),
    *WORKER_PROCESS_FLAGS,
    *SERVE_SECURITY_FLAGS,
    Flag("--exit-with-stdin", bool, False, "end when standard input ends"),
)
WORKER_FLAGS: Final = (
    Flag(
        "--router",
        str,
        (),
        "router to serve; repeatable; with --redis those that are registered there are found",
        pattern=ADDRESS,
        is_list=True,
        metavar="HOST:PORT",
    ),
    Flag("--worker-id", str, None, "name of the worker; default: role and a random part", pattern=NAME),
    Flag("--peer-address", str, "tcp://127.0.0.1:0", "address to listen at for other workers"),
    Flag(
        "--advertise-host",
        str,
        "",
        "host at which other workers reach this one; default: that of --peer-address, or for 0.0.0.0 that of "
        "the interface that leads to the router",
    ),
    Flag(
        "--metrics-port",
        int,
        None,
        "port of /metrics and /health, on the host of --peer-address; 0 takes any; default: none, and the "
        "router tells of this worker",
        low=0,
        high=65_535,
    ),
    *WORKER_SECURITY_FLAGS,
    Flag("--num-workers", int, 1, "workers that share this machine's memory", low=1, high=1024),
    Flag(
        "--num-threads",
        int,
        0,
        "threads of a step; 0 is one for each core of --cpu-bind, else torch's choice",
        low=0,
        high=1024,
    ),
    Flag("--cpu-bind", str, "none", "cores to compute on, such as 0-3,8; none leaves it to the system"),
    *WORKER_PROCESS_FLAGS,
)


@dataclass(frozen=True, slots=True)
class Command:
    """One command and all of its flags."""

    name: str
    help: str
    flags: tuple[Flag, ...] = ()


_ROUTER: Final = (*ROUTER_FLAGS, *HTTP_FLAGS, *SHARED_FLAGS, *FLEET_FLAGS)
_WORKER: Final = (*MODEL_FLAGS, *ENGINE_FLAGS, *SHARED_FLAGS, *FLEET_FLAGS, *WORKER_FLAGS, *LOG_FLAGS)
_CLIENT: Final = (*CLIENT_FLAGS, *SAMPLING_FLAGS, *LOG_FLAGS)
COMMANDS: Final = (
    Command(
        "serve",
        "start router and workers on this machine",
        (*MODEL_FLAGS, *_ROUTER, *ENGINE_FLAGS, *SERVE_FLAGS, *LOG_FLAGS),
    ),
    Command("router", "start a router", (*MODEL_FLAGS, *_ROUTER, *LOG_FLAGS)),
    Command("prefill-worker", "start a prefill worker", _WORKER),
    Command("decode-worker", "start a decode worker", _WORKER),
    Command("mixed-worker", "start a mixed worker", _WORKER),
    Command("complete", "complete a prompt at a running router", (*COMPLETE_FLAGS, *_CLIENT)),
    Command("chat", "talk with the model at a running router", (*CHAT_FLAGS, *_CLIENT)),
    Command("admin", "see workers and change what they do, at a running router"),
    Command("kv-events", "print what a worker publishes of its cache", (*KV_EVENTS_FLAGS, *LOG_FLAGS)),
    Command("explain", "show what became of a request at a running router", (*EXPLAIN_FLAGS, *LOG_FLAGS)),
    Command(
        "simulate",
        "run simulated clusters: how much a fleet serves of a trace, or what holds under faults",
        (*SIMULATION_FLAGS, *CAPACITY_FLAGS, *LOG_FLAGS),
    ),
    Command("bench", "measure an engine, or a running server"),
    Command("collect-env", "print what this machine is and has, for reports of errors"),
)
_COMPUTING: Final = [command.name for command in COMMANDS if set(ENGINE_FLAGS) <= set(command.flags)]
_FIELDS_OF_OTHERS: Final = {"memory_share": "gpu_memory_utilization"}
"""Fields that the engine names otherwise than the command line."""


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the whole command line and the configuration file that it names.

    Raises:
        InvalidConfigError: a value is not allowed.
        SystemExit: help was asked for, or a flag is unknown.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    root, parsers = _parsers(argv)
    if argv and argv[0] in _COMPUTING:
        argv = take_fixed_flags(argv)
    args, unknown = root.parse_known_args(argv)
    if unknown:
        parsers[args.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    if args.config is not None:
        flags = next(command.flags for command in COMMANDS if command.name == args.command)
        if args.command == "bench":
            flags = bench_flags(args.benchmark)
        parsers[args.command].set_defaults(**read_config(args.config, flags))
        args = root.parse_args(argv)
    if "model" in args and args.model is None:
        _refuse_model_among_names(getattr(args, "served_model_name", ()))
        args.model = BUNDLED_MODEL
        if "served_model_name" in args:
            args.served_model_name = args.served_model_name or default_names(BUNDLED_MODEL)
    return args


def settle(args: argparse.Namespace) -> None:
    """Mutate what `serve` was given, so that nothing is left to read for its launcher alone.

    Raises:
        InvalidModelError: a model of a certain revision cannot be fetched.
    """
    engine = EngineArgs.from_cli_args(args)
    if args.revision or args.tokenizer_revision or args.download_dir:
        # Imports the Hub's client, which a folder does not need.
        from baton.config.engine_folders import with_local_folders

        engine = with_local_folders(engine)
    for flag in (*MODEL_FLAGS, *_ROUTER, *ENGINE_FLAGS):
        if hasattr(engine, flag.field):
            setattr(args, flag.field, getattr(engine, flag.field))


def as_flags(message: str) -> str:
    """Name the flag where an error's text begins with the field that it sets."""
    field, is_, rest = message.partition(" is ")
    field = _FIELDS_OF_OTHERS.get(field, field)
    names = {flag.field: flag.name for command in COMMANDS for flag in command.flags}
    return names.get(field, field) + is_ + rest


def shutdown_timeout_s(args: argparse.Namespace) -> float:
    """Return the time that a process has for its shutdown."""
    given: float | None = args.shutdown_timeout
    return DEFAULT_SHUTDOWN_TIMEOUT_S if given is None else given


def router_flags(args: argparse.Namespace) -> tuple[str, ...]:
    """Arguments of the router that `serve` starts."""
    return (args.model, *_given(args, (*_ROUTER, *LOG_FLAGS)))


def worker_flags(args: argparse.Namespace, *, num_workers: int) -> tuple[str, ...]:
    """Arguments of all workers that `serve` starts; they share the machine's memory."""
    shares = ("--num-workers", str(num_workers))
    given = _given(args, (*ENGINE_FLAGS, *SHARED_FLAGS, *FLEET_FLAGS, *WORKER_PROCESS_FLAGS, *LOG_FLAGS))
    return (args.model, *given, *local_worker_flags(args), *shares)


def _refuse_model_among_names(served_names: Sequence[str]) -> None:
    """The flag takes all that follows it: MODEL behind the names would be served as one more of them."""
    for name in served_names[1:]:
        if "/" in name or Path(name).is_dir():
            raise InvalidConfigError(
                f"--served-model-name is {shown(name)} and MODEL is left out; "
                "allowed: MODEL before the names, or names without / that are no folders"
            )


def _given(args: argparse.Namespace, flags: Sequence[Flag]) -> tuple[str, ...]:
    return tuple(text for flag in flags for text in flag.given(getattr(args, flag.field)))


def _parsers(argv: Sequence[str]) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The command line, and its commands' parts of it; only the command that is asked for has its flags."""
    root = argparse.ArgumentParser(prog="baton", description="Disaggregated serving of language models.")
    root.add_argument("--version", action="version", version=f"baton {version('baton')}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parsers = {}
    for command in COMMANDS:
        description = command.help.capitalize() + "."
        parser = commands.add_parser(
            command.name, help=command.help, description=description, allow_abbrev=False
        )
        parsers[command.name] = parser
        if argv[:1] == [command.name]:
            _add_arguments(parser, command)
            if command.name == "bench":
                parsers[command.name] = add_benchmarks(parser, "".join(argv[1:2]))
    return root, parsers


def _add_arguments(parser: argparse.ArgumentParser, command: Command) -> None:
    if command.name == "complete":
        parser.add_argument("prompt", nargs="+", help="one or more prompts")
    if command.name == "explain":
        parser.add_argument("request_id", metavar="ID", help="id of an answer, or its x-request-id")
    if command.name == "admin":
        add_actions(parser)
    for flag in command.flags:
        flag.add_to(parser)
    if not command.flags:
        parser.set_defaults(config=None, parent_pid=0, report_fd=None, log_format="text", log_level="info")
        return
    parser.add_argument("--config", metavar="FILE", help="YAML file of flags; those given here come first")
    parser.add_argument("--parent-pid", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--report-fd", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--workers-fd", type=int, default=None, help=argparse.SUPPRESS)
