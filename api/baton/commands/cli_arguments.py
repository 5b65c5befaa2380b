"""The command line of `baton`: reads it, and hands on what `serve` was given to its children."""

from __future__ import annotations

import argparse
import re
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from baton.commands.batch_arguments import BATCH_SHORT_FLAGS
from baton.commands.bench_arguments import BENCH_ACTIONS, add_benchmarks, bench_flags
from baton.commands.client_arguments import add_actions
from baton.commands.command_flags import (
    COMMANDS,
    ENGINE_FLAGS,
    FLEET_FLAGS,
    LOG_FLAGS,
    MODEL_FLAGS,
    ROUTER_GROUPS,
    SHARED_FLAGS,
    WORKER_PROCESS_FLAGS,
    Command,
    FlagGroup,
)
from baton.commands.config_file import read_config
from baton.commands.help_pages import add_groups, help_page, usage_of
from baton.commands.neutral_flags import NeutralFlags, neutral_flags
from baton.commands.security_arguments import local_worker_flags
from baton.commands.spelling import values_apart, written_out
from baton.commands.vllm_server_flags import CLIENT_SHORT_FLAGS, REFUSED_COMMANDS
from baton.config.engine_arg_fields import Part, flags_of
from baton.config.engine_args import BUNDLED_MODEL, EngineArgs, default_names
from baton.config.environment import environment_defaults
from baton.config.fixed_engine_args import SHORT_FLAGS
from baton.config.flags import Flag, did_you_mean, read_arguments, shown
from baton_core.errors import InvalidConfigError
from baton_service.stop_signals import DEFAULT_SHUTDOWN_TIMEOUT_S

_ROUTER: Final = tuple(flag for group in ROUTER_GROUPS for flag in group.flags)
_COMPUTING: Final = ("serve", "prefill-worker", "decode-worker", "mixed-worker")
SERVING: Final = ("router", *_COMPUTING)
"""Commands of routers and workers."""
BATCH: Final = "run-batch"
"""The command that takes the flags of `serve` beside its own."""
(_SERVE,) = (one for one in COMMANDS if one.name == "serve")
_FIELDS_OF_OTHERS: Final = {"memory_share": "gpu_memory_utilization"}
"""Fields that the engine names otherwise than the command line."""
_ONE_ENGINE: Final[Mapping[str, Any]] = {"mixed": 1, "prefill_workers": 0, "decode_workers": 0}
_FLAG: Final = re.compile(r"(--[A-Za-z][\w-]*)(=.*)?", re.DOTALL)
Defaults = Callable[[Set[str]], Mapping[str, Any]]
"""Defaults by field, given the fields that the command line or the configuration file sets."""


def no_defaults(given: Set[str]) -> Mapping[str, Any]:
    """Leave all flags the defaults that they have."""
    return {}


def parse(argv: Sequence[str] | None = None, defaults: Defaults = no_defaults) -> argparse.Namespace:
    """Read the whole command line, the configuration file that it names, and the environment.

    `defaults` stand in for those of the command's flags.

    Raises:
        InvalidConfigError: a value is not allowed, or a command or flag is one that only vLLM has.
        SystemExit: help was asked for, or a flag is unknown.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    _refuse_commands(argv)
    command = next((one for one in COMMANDS if argv[:1] == [one.name]), Command("", ""))
    neutral = _neutral_flags(argv)
    _show_help(command, neutral, argv, defaults)
    root, parsers = _parsers(argv)
    parser = parsers.get(command.name, root)
    of_others = _SERVE.flags if command.name == BATCH else ()
    known = {*parser._option_string_actions, *neutral.known, *(flag.name for flag in of_others)}
    is_serving = command.name in SERVING
    if command.groups or command.name == "bench":
        has_model = is_serving or command.name == BATCH
        given = written_out(argv[1:], _short_flags(command, neutral), has_model=has_model)
        given = neutral.take(given)
        argv = [*argv[:1], *(values_apart(given, "--api-key") if is_serving else given)]
        # argparse takes those with a space for positional arguments.
        texts = [one for one in _unknown_flags(argv, known) if " " in one]
        _refuse_unknown(parser, texts, known, advice="; text that begins with -- comes after an argument --")
    args, unknown = read_arguments(root, argv)
    _refuse_unknown(parser, _unknown_flags(unknown, known) if of_others else unknown, known)
    flags = bench_flags(args.benchmark) if command.name == "bench" else command.flags
    of_file = {} if args.config is None else read_config(args.config, (*of_others, *flags), neutral)
    of_environment = _of_environment(command, argv) if is_serving else {}
    if values := {**of_environment, **defaults(fields_in(argv) | of_file.keys()), **of_file}:
        parser.set_defaults(**values)
        args, unknown = read_arguments(root, argv)
    if "model" in args and args.model is None:
        _refuse_model_among_names(getattr(args, "served_model_name", ()))
        args.model = BUNDLED_MODEL
        if "served_model_name" in args:
            args.served_model_name = args.served_model_name or default_names(BUNDLED_MODEL)
    args.neutral_flags, args.serve_words = tuple(neutral.given), unknown
    own_fields = {flag.field for flag in flags}
    args.serve_values = {field: value for field, value in of_file.items() if field not in own_fields}
    return args


def _unknown_flags(argv: Sequence[str], known: Set[str]) -> list[str]:
    """Arguments `--name` and `--name=value` up to `--` whose name is not known."""
    words = takewhile(lambda word: word != "--", argv)
    names = {word: name[1] for word in words if (name := _FLAG.fullmatch(word))}
    return [word for word, name in names.items() if not {name, name.replace("--no-", "--", 1)} & known]


def _refuse_unknown(
    parser: argparse.ArgumentParser, unknown: Sequence[str], known: Set[str], advice: str = ""
) -> None:
    if unknown:
        meant = did_you_mean(unknown[0].partition("=")[0], known)
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{meant}{advice}")


def _of_environment(command: Command, argv: Sequence[str]) -> Mapping[str, Any]:
    """Defaults by field that variables stand in for; none in a child, whose parent has read them."""
    if "--parent-pid" in argv:
        return {}
    named = {word.partition("=")[0].replace("--no-", "--", 1) for word in argv}
    return environment_defaults([flag for flag in command.flags if flag.name not in named])


def _refuse_commands(argv: Sequence[str]) -> None:
    for name, reason in REFUSED_COMMANDS.items():
        words = name.split()
        if list(argv[: len(words)]) == words:
            raise InvalidConfigError(f"baton has no command {name}: {reason}")


def _neutral_flags(argv: Sequence[str]) -> NeutralFlags:
    """The flags of vLLM's that a command knows beside its own."""
    name = " ".join(argv[: 2 if argv[:1] == ["bench"] else 1])
    has_engine = name in ("bench latency", "bench throughput", BATCH) or name in _COMPUTING
    return neutral_flags(
        has_engine=has_engine,
        has_router=name in ("serve", "router", BATCH),
        has_tokenizer=name in ("bench serve", "bench sweep"),
    )


def _short_flags(command: Command, neutral: NeutralFlags) -> Mapping[str, str]:
    if command.name in ("chat", "complete"):
        return CLIENT_SHORT_FLAGS
    if command.name == BATCH:
        return SHORT_FLAGS | BATCH_SHORT_FLAGS
    return SHORT_FLAGS if neutral.known else {}


def _benchmark(argv: Sequence[str]) -> Command:
    """The benchmark that is asked for, as a command; without groups where there is none."""
    for action in BENCH_ACTIONS:
        if argv[1:2] == [action.name]:
            engine = (FlagGroup("engine", "the engine", flags_of(EngineArgs)),) if action.is_offline else ()
            own = FlagGroup(action.name, action.help, action.flags)
            return Command(f"bench {action.name}", action.help, (own, *engine))
    return Command("", "")


def _show_help(command: Command, neutral: NeutralFlags, argv: Sequence[str], defaults: Defaults) -> None:
    """Print a page of help and exit, where one is asked for that argparse does not write."""
    words = list(takewhile(lambda word: word != "--", argv[: 2 if command.name == "as-vllm" else None]))
    topics = [word for word in words if word in ("-h", "--help") or word[:7] == "--help="]
    if command.name == "bench":
        command = _benchmark(argv)
    if not topics:
        return
    if not command.groups:  # of any topic there is the whole page, which is short
        read_arguments(_parsers(argv)[0], [*words[: words.index(topics[0])], "--help"])
    values = defaults(set())
    page = help_page(command.with_defaults(values), neutral.known, topics[0].partition("=")[2])
    parser = _parsers(argv, values)[1][argv[0]]
    sys.stdout.write(parser.format_help() if page is None else page)
    raise SystemExit(0)


def settle(args: argparse.Namespace) -> None:
    """Mutate what `serve` was given, so that nothing is left to read for its launcher alone.

    Raises:
        InvalidModelError: a model of a certain revision cannot be fetched.
    """
    engine = EngineArgs.from_cli_args(args)
    fetched = args.revision or args.tokenizer_revision or args.download_dir or args.hf_token
    if fetched or args.hf_config_path or _may_lack_config(Path(args.model)):
        # Imports the Hub's client, which a folder does not need.
        from baton.config.engine_folders import with_local_folders

        engine = with_local_folders(engine)
    for flag in (*MODEL_FLAGS, *ENGINE_FLAGS, *SHARED_FLAGS, *flags_of(EngineArgs, Part.ROUTER)):
        setattr(args, flag.field, getattr(engine, flag.field))


def _may_lack_config(path: Path) -> bool:
    """Say whether a model is a GGUF file, or a folder whose config.json another file takes the place of."""
    return path.suffix == ".gguf" or (path.is_dir() and not (path / "config.json").exists())


def as_flags(message: str) -> str:
    """Name the flag where an error's text begins with the field that it sets."""
    field, is_, rest = message.partition(" is ")
    field = _FIELDS_OF_OTHERS.get(field, field)
    names = {flag.field: flag.name for command in COMMANDS for flag in command.flags}
    return names.get(field, field) + is_ + rest


def process_names(args: argparse.Namespace) -> dict[str, str]:
    """Return the process's name in the log by its field in JSON; a worker without a name gets one here."""
    if args.command.endswith("-worker"):
        role = args.command.removesuffix("-worker")
        args.worker_id = args.worker_id or f"{role}-{secrets.token_hex(4)}"
        return {"worker_id": args.worker_id}
    if args.command == "router" and args.group_member:
        return {"process": args.group_member.partition(":")[0]}
    return {}


def shutdown_timeout_s(args: argparse.Namespace) -> float:
    """Return the time that a process has for its shutdown."""
    given: float | None = args.shutdown_timeout
    return DEFAULT_SHUTDOWN_TIMEOUT_S if given is None else given


def serve_flags(args: argparse.Namespace) -> tuple[str, ...]:
    """Arguments of the `serve` that `run-batch` starts."""
    return (args.model, *_given(args, [flag for flag in _SERVE.flags if flag not in MODEL_FLAGS]))


def fields_in(words: Sequence[str]) -> set[str]:
    """Fields of the flags among words of a command line."""
    names = {word.partition("=")[0] for word in words if word.startswith("--")}
    return {name.removeprefix("--").replace("-", "_") for name in names}


def one_engine(given: Set[str]) -> Mapping[str, Any]:
    """Defaults by which `serve` has one engine; none where the fields given say what workers it has."""
    return {} if given & _ONE_ENGINE.keys() else _ONE_ENGINE


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


def _parsers(
    argv: Sequence[str], defaults: Mapping[str, Any] = MappingProxyType({})
) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The command line, and its commands' parts of it; only the command that is asked for has its flags.

    `defaults` are those of its flags, by field.
    """
    root = argparse.ArgumentParser(prog="baton", description="Disaggregated serving of language models.")
    root.add_argument("--version", action="version", version=f"baton {version('baton')}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parsers = {}
    for command in COMMANDS:
        parser = commands.add_parser(
            command.name,
            help=command.help,
            usage=usage_of(command),
            description=command.description,
            allow_abbrev=False,
        )
        parsers[command.name] = parser
        if argv[:1] == [command.name]:
            _add_arguments(parser, command.with_defaults(defaults))
            if command.name == "bench":
                parsers[command.name] = add_benchmarks(parser, "".join(argv[1:2]))
    return root, parsers


def _add_arguments(parser: argparse.ArgumentParser, command: Command) -> None:
    if command.name == "complete":
        parser.add_argument("prompt", nargs="*", help="default: each line of the input")
    if command.name == "explain":
        parser.add_argument("request_id", metavar="ID", help="id of an answer, or its x-request-id")
    if command.name == "admin":
        add_actions(parser)
    if command.name == "as-vllm":
        parser.add_argument(
            "words", nargs=argparse.REMAINDER, metavar="COMMAND", help="a program and its arguments"
        )
    add_groups(parser, command)
    if not command.flags:
        parser.set_defaults(config=None, parent_pid=0, report_fd=None, log_format="text", log_level="info")
        return
    parser.add_argument("--config", metavar="FILE", help="YAML file of flags; those given here come first")
    parser.add_argument("--parent-pid", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--report-fd", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--workers-fd", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--group-member", default="", help=argparse.SUPPRESS)
