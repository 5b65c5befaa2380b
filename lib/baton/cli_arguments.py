"""Commands of `baton` and their flags.

One table per concern, so that `serve` can hand them on to its children.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

import baton
from baton.config_file import read_config
from baton.flags import ADDRESS, MODEL, NAME, Flag, shown
from baton_core.errors import InvalidConfigError
from baton_kv.transport import Transport

BUNDLED_MODEL: Final = str(Path(baton.__file__).parent / "bundled")
_MAX_INT: Final = 2**31 - 1

MODEL_FLAGS: Final = (
    Flag(
        "model",
        str,
        None,
        "a folder or a Hugging Face id; default: the bundled model",
        form=MODEL,
        metavar="MODEL",
        nargs="?",
    ),
)
ENGINE_FLAGS: Final = (
    Flag("--dtype", str, "auto", "auto, float32, bfloat16, and float16 or half on a GPU"),
    Flag("--device", str, "auto", "auto is a GPU where torch sees one", ("auto", "cpu", "cuda")),
    Flag("--enforce-eager", bool, False, "on a GPU: do not capture decode steps as CUDA graphs"),
    Flag("--block-size", int, 32, "tokens of a KV block", low=1, high=65_536),
    Flag(
        "--max-model-len",
        int,
        None,
        "longest sequence; default: the model's, lowered to what fits",
        low=1,
        high=_MAX_INT,
    ),
    Flag("--max-num-seqs", int, 128, "sequences that run at once", low=1, high=65_536),
    Flag("--max-num-batched-tokens", int, 2048, "token budget of a step", low=1, high=_MAX_INT),
    Flag(
        "--scheduling-policy",
        str,
        "fcfs",
        "fcfs, or priority: lower values first, at the expense of running requests with higher ones",
        ("fcfs", "priority"),
    ),
    Flag(
        "--max-num-partial-prefills",
        int,
        1,
        "prompts that are computed in part at a time",
        low=1,
        high=65_536,
    ),
    Flag("--max-long-partial-prefills", int, 1, "long prompts among them", low=1, high=65_536),
    Flag(
        "--long-prefill-token-threshold",
        int,
        0,
        "a prompt with more tokens is long and gets this many in a step; 0: none is long, or with several "
        "partial prefills 4 % of the longest sequence",
        low=0,
        high=_MAX_INT,
    ),
    Flag(
        "--kv-transport",
        str,
        "auto",
        "how KV blocks travel; auto: by TCP where shared memory cannot be read",
        tuple(Transport),
    ),
    Flag("--kv-cache-memory-bytes", int, None, "size of each worker's KV cache", low=1, high=2**50),
    Flag(
        "--gpu-memory-utilization",
        float,
        0.9,
        "share of the free memory for all workers together",
        low=0,
        high=1,
        is_low_open=True,
    ),
)
ROUTER_FLAGS: Final = (
    Flag("--host", str, "127.0.0.1", "address to listen on"),
    Flag("--port", int, 8100, "port to listen on; 0 takes any", low=0, high=65_535),
    Flag(
        "--served-model-name",
        str,
        (),
        "names clients ask for; default: the model's folder or id",
        form=NAME,
        is_list=True,
        nargs="+",
        metavar="NAME",
    ),
    Flag("--split", str, "auto", "when to use a prefill worker", ("auto", "always", "never")),
    Flag(
        "--min-split-tokens", int, 256, "uncached prompt tokens from which auto splits", low=1, high=_MAX_INT
    ),
    Flag(
        "--request-timeout", float, 600.0, "seconds a request may take", low=0, high=10**9, is_low_open=True
    ),
)
LOG_FLAGS: Final = (
    Flag("--log-format", str, "text", "text or json", ("text", "json")),
    Flag("--log-level", str, "info", "debug, info, warning or error", ("debug", "info", "warning", "error")),
)
SERVE_FLAGS: Final = (
    Flag("--prefill-workers", int, 1, "prefill workers", low=0, high=1024, metavar="N"),
    Flag("--decode-workers", int, 1, "decode workers", low=0, high=1024, metavar="N"),
    Flag("--mixed", int, 0, "workers that do both", low=0, high=1024, metavar="N"),
    Flag("--exit-with-stdin", bool, False, "end when standard input ends"),
)
WORKER_FLAGS: Final = (
    Flag("--router", str, (), "router to serve; repeatable", form=ADDRESS, is_list=True, metavar="HOST:PORT"),
    Flag("--worker-id", str, None, "name of the worker; default: role and a random part", form=NAME),
    Flag("--peer-address", str, "tcp://127.0.0.1:0", "where to listen to other workers"),
    Flag(
        "--advertise-host",
        str,
        "",
        "where other workers reach this one; default: the host of --peer-address, or for 0.0.0.0 that of "
        "the interface that leads to the router",
    ),
    Flag("--num-workers", int, 1, "workers that share this machine's memory", low=1, high=1024),
    Flag("--num-threads", int, 0, "threads of a step; 0 leaves it to torch", low=0, high=1024),
)
CLIENT_FLAGS: Final = (
    Flag("--address", str, "127.0.0.1:8100", "the router", form=ADDRESS, metavar="HOST:PORT"),
    Flag("--model-name", str, "", "one of the served names; default: the first"),
)
SAMPLING_FLAGS: Final = (
    Flag("--temperature", float, None, "0 is greedy; default: the model's", low=0),
    Flag("--top-p", float, None, "default: the model's", low=0, high=1, is_low_open=True),
    Flag("--top-k", int, None, "0 or -1 is all tokens; default: the model's", low=-1, high=_MAX_INT),
    Flag("--seed", int, None, "-1, the default, lets the router choose", low=-(2**63), high=2**63 - 1),
)
COMPLETE_FLAGS: Final = (
    Flag("--max-tokens", int, 64, "most tokens to generate", low=1, high=_MAX_INT),
    Flag("--n", int, 1, "sequences to generate", low=1, high=64),
    Flag("--chat", bool, False, "ask as a user, with the chat template"),
)
CHAT_FLAGS: Final = (
    Flag("--max-tokens", int, 512, "most tokens of an answer", low=1, high=_MAX_INT),
    Flag("--system", str, "", "what the system says before the conversation"),
)


@dataclass(frozen=True, slots=True)
class Command:
    """One command and all of its flags."""

    name: str
    help: str
    flags: tuple[Flag, ...] = ()


_WORKER: Final = (*MODEL_FLAGS, *ENGINE_FLAGS, *WORKER_FLAGS, *LOG_FLAGS)
_CLIENT: Final = (*CLIENT_FLAGS, *SAMPLING_FLAGS, *LOG_FLAGS)
COMMANDS: Final = (
    Command(
        "serve",
        "start router and workers on this machine",
        (*MODEL_FLAGS, *ROUTER_FLAGS, *ENGINE_FLAGS, *SERVE_FLAGS, *LOG_FLAGS),
    ),
    Command("router", "start a router", (*MODEL_FLAGS, *ROUTER_FLAGS, *LOG_FLAGS)),
    Command("prefill-worker", "start a prefill worker", _WORKER),
    Command("decode-worker", "start a decode worker", _WORKER),
    Command("mixed-worker", "start a mixed worker", _WORKER),
    Command("complete", "complete a prompt at a running router", (*COMPLETE_FLAGS, *_CLIENT)),
    Command("chat", "talk with the model at a running router", (*CHAT_FLAGS, *_CLIENT)),
    Command("collect-env", "print what this machine is and has, for reports of errors"),
)
_FIELDS_OF_OTHERS: Final = {"memory_share": "gpu_memory_utilization"}
"""Fields that the engine names otherwise than the command line."""


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the whole command line and the configuration file that it names.

    Raises:
        InvalidConfigError: a value is not allowed.
        SystemExit: help was asked for, or a flag is unknown.
    """
    root, parsers = _parsers()
    args = root.parse_args(argv)
    if args.config is not None:
        flags = next(command.flags for command in COMMANDS if command.name == args.command)
        parsers[args.command].set_defaults(**read_config(args.config, flags))
        args = root.parse_args(argv)
    if "model" in args and args.model is None:
        _refuse_model_among_names(getattr(args, "served_model_name", ()))
        args.model = BUNDLED_MODEL
    return args


def as_flags(message: str) -> str:
    """Name the flag where an error's text begins with the field that it sets."""
    field, is_, rest = message.partition(" is ")
    field = _FIELDS_OF_OTHERS.get(field, field)
    names = {flag.field: flag.name for command in COMMANDS for flag in command.flags}
    return names.get(field, field) + is_ + rest


def router_flags(args: argparse.Namespace) -> tuple[str, ...]:
    """Arguments of the router that `serve` starts."""
    return (args.model, *_given(args, (*ROUTER_FLAGS, *LOG_FLAGS)))


def worker_flags(args: argparse.Namespace, *, num_workers: int, num_cores: int) -> tuple[str, ...]:
    """Arguments of each worker that `serve` starts; they share the machine's memory and cores."""
    num_threads = max(1, num_cores // max(num_workers, 1))
    shares = ("--num-workers", str(num_workers), "--num-threads", str(num_threads))
    return (args.model, *_given(args, (*ENGINE_FLAGS, *LOG_FLAGS)), *shares)


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


def _parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The whole command line, and its commands' parts of it."""
    root = argparse.ArgumentParser(prog="baton", description="Disaggregated serving of language models.")
    root.add_argument("--version", action="version", version=f"baton {version('baton')}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    return root, {command.name: _parser(commands, command) for command in COMMANDS}


def _parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], command: Command
) -> argparse.ArgumentParser:
    description = command.help.capitalize() + "."
    parser = commands.add_parser(command.name, help=command.help, description=description, allow_abbrev=False)
    if command.name == "complete":
        parser.add_argument("prompt", nargs="+", help="one or more prompts")
    for flag in command.flags:
        flag.add_to(parser)
    if not command.flags:
        parser.set_defaults(config=None, parent_pid=0, report_fd=None, log_format="text", log_level="info")
        return parser
    parser.add_argument("--config", metavar="FILE", help="YAML file of flags; those given here come first")
    parser.add_argument("--parent-pid", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--report-fd", type=int, default=None, help=argparse.SUPPRESS)
    return parser
