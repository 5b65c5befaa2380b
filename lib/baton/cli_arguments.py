"""Flags of the `baton` command. One table per concern, so that `serve` can hand them on to its children."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import baton

BUNDLED_MODEL: Final = str(Path(baton.__file__).parent / "bundled")


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag with a value; a default of None leaves the choice to the process."""

    name: str
    kind: type
    default: object
    help: str
    choices: tuple[str, ...] | None = None

    @property
    def field(self) -> str:
        return self.name.removeprefix("--").replace("-", "_")


ENGINE_FLAGS: Final = (
    Flag("--dtype", str, "auto", "auto, float32 or bfloat16"),
    Flag("--block-size", int, 32, "tokens of a KV block"),
    Flag("--max-model-len", int, None, "longest sequence; default: the model's, lowered to what fits"),
    Flag("--max-num-seqs", int, 128, "sequences that run at once"),
    Flag("--max-num-batched-tokens", int, 2048, "token budget of a step"),
    Flag("--kv-cache-memory-bytes", int, None, "size of each worker's KV cache"),
    Flag("--gpu-memory-utilization", float, 0.9, "share of the free memory for all workers together"),
)
ROUTER_FLAGS: Final = (
    Flag("--host", str, "127.0.0.1", "address to listen on"),
    Flag("--port", int, 8100, "port to listen on; 0 takes any"),
    Flag("--served-model-name", str, None, "name clients ask for; default: the model's folder or id"),
    Flag("--split", str, "auto", "when to use a prefill worker", ("auto", "always", "never")),
    Flag("--min-split-tokens", int, 256, "uncached prompt tokens from which auto splits"),
    Flag("--request-timeout", float, 600.0, "seconds a request may take"),
)
LOG_FLAGS: Final = (
    Flag("--log-format", str, "text", "text or json", ("text", "json")),
    Flag("--log-level", str, "info", "debug, info, warning or error", ("debug", "info", "warning", "error")),
)
WORKER_FLAGS: Final = (
    Flag("--worker-id", str, "", "name of the worker; default: role and a random part"),
    Flag("--peer-address", str, "tcp://127.0.0.1:0", "where other workers reach this one"),
    Flag("--num-workers", int, 1, "workers that share this machine's memory"),
    Flag("--num-threads", int, 0, "threads of a step; 0 leaves it to torch"),
)
SAMPLING_FLAGS: Final = (
    Flag("--max-tokens", int, 64, "most tokens to generate"),
    Flag("--temperature", float, None, "0 is greedy; default: the model's"),
    Flag("--top-p", float, None, "default: the model's"),
    Flag("--top-k", int, None, "default: the model's"),
    Flag("--seed", int, None, "default: chosen by the router"),
    Flag("--n", int, 1, "sequences to generate"),
)


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    root = argparse.ArgumentParser(prog="baton", description="Disaggregated serving of language models.")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = _command(commands, "serve", "start router and workers on this machine", LOG_FLAGS)
    _add_model(serve)
    _add(serve, (*ROUTER_FLAGS, *ENGINE_FLAGS))
    serve.add_argument("--prefill-workers", type=int, default=1, metavar="N", help="default 1")
    serve.add_argument("--decode-workers", type=int, default=1, metavar="N", help="default 1")
    serve.add_argument("--mixed", type=int, default=0, metavar="N", help="workers that do both; default 0")
    serve.add_argument("--exit-with-stdin", action="store_true", help="end when standard input ends")
    router = _command(commands, "router", "start a router", LOG_FLAGS)
    _add_model(router)
    _add(router, ROUTER_FLAGS)
    for name in ("prefill-worker", "decode-worker", "mixed-worker"):
        worker = _command(commands, name, f"start a {name.replace('-', ' ')}", LOG_FLAGS)
        _add_model(worker)
        _add(worker, (*ENGINE_FLAGS, *WORKER_FLAGS))
        worker.add_argument(
            "--router", action="append", default=[], metavar="HOST:PORT", help="router to serve; repeatable"
        )
    complete = _command(commands, "complete", "complete a prompt at a running router", LOG_FLAGS)
    complete.add_argument("prompt", nargs="+", help="one or more prompts")
    complete.add_argument("--chat", action="store_true", help="ask as a user, with the chat template")
    complete.add_argument("--address", default="127.0.0.1:8100", metavar="HOST:PORT", help="the router")
    _add(complete, SAMPLING_FLAGS)
    return root


def router_flags(args: argparse.Namespace) -> tuple[str, ...]:
    """Arguments of the router that `serve` starts."""
    return (args.model, *_given(args, (*ROUTER_FLAGS, *LOG_FLAGS)))


def worker_flags(args: argparse.Namespace, *, num_workers: int, num_cores: int) -> tuple[str, ...]:
    """Arguments of each worker that `serve` starts; they share the machine's memory and cores."""
    num_threads = max(1, num_cores // max(num_workers, 1))
    shares = ("--num-workers", str(num_workers), "--num-threads", str(num_threads))
    return (args.model, *_given(args, (*ENGINE_FLAGS, *LOG_FLAGS)), *shares)


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    flags: Sequence[Flag],
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text.capitalize() + ".", allow_abbrev=False)
    _add(command, flags)
    command.add_argument("--parent-pid", type=int, default=0, help=argparse.SUPPRESS)
    command.add_argument("--report-fd", type=int, default=None, help=argparse.SUPPRESS)
    return command


def _add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "model",
        nargs="?",
        default=BUNDLED_MODEL,
        metavar="MODEL",
        help="a folder or a Hugging Face id; default: the bundled model",
    )


def _add(command: argparse.ArgumentParser, flags: Sequence[Flag]) -> None:
    for flag in flags:
        shown = "" if flag.default in (None, "") else f" (default {flag.default})"
        command.add_argument(
            flag.name,
            type=flag.kind,
            default=flag.default,
            choices=flag.choices,
            help=(flag.help + shown).replace("%", "%%"),
        )


def _given(args: argparse.Namespace, flags: Sequence[Flag]) -> tuple[str, ...]:
    values = [(flag.name, getattr(args, flag.field)) for flag in flags]
    return tuple(text for name, value in values if value is not None for text in (name, str(value)))
