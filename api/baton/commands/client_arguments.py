"""Flags of the commands that are clients of a running router, and the actions of `baton admin`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Final

from baton.commands.security_arguments import CLIENT_SECURITY_FLAGS
from baton.config.flags import ADDRESS, ENDPOINT, MAX_INT, POSITIVE, SHARE_OVER_0, Flag, Pattern, Range
from baton_core.sessions.worker_info import Role

_ROUTER: Final = (
    Flag("--address", str, "127.0.0.1:8100", "the router's gRPC port", ADDRESS),
    *CLIENT_SECURITY_FLAGS,
)
SERVER_URL: Final = Pattern(
    r"https?://[^\s/?#]+(/[^\s?#]*)?", "http://host:port/v1 or https://host:port/v1", "URL"
)
_FORCE: Final = Flag("--force", bool, False, "even if no worker is left that prefills, or none that decodes")
_WAIT: Final = Flag(
    "--wait",
    float,
    None,
    "wait until the worker is empty, so many seconds at most; default: do not wait",
    Range(0, 86_400, is_low_open=True),
    metavar="SECONDS",
)
_TIMEOUT: Final = Flag(
    "--timeout",
    float,
    600.0,
    "seconds that running requests and the workers' loading may take",
    Range(0, 86_400, is_low_open=True),
    metavar="SECONDS",
)


@dataclass(frozen=True, slots=True)
class _Action:
    name: str
    help: str
    has_worker: bool = True
    flags: tuple[Flag, ...] = ()


_ACTIONS: Final = (
    _Action("workers", "list the workers", has_worker=False),
    _Action("set-role", "have a worker prefer prefill, decode, or both, for good", flags=(_FORCE,)),
    _Action("drain", "have a worker take no new requests; those it has go on", flags=(_WAIT, _FORCE)),
    _Action("undrain", "have it take requests again"),
    _Action(
        "update-weights",
        "have all workers compute with new weights; no answer mixes two versions",
        has_worker=False,
        flags=(_TIMEOUT,),
    ),
)


def add_actions(parser: argparse.ArgumentParser) -> None:
    """Mutate the parser of `baton admin`."""
    parsers = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for action in _ACTIONS:
        description = action.help.capitalize() + "."
        sub = parsers.add_parser(action.name, help=action.help, description=description, allow_abbrev=False)
        if action.has_worker:
            sub.add_argument("worker_id", metavar="WORKER", help="name of the worker")
        if action.name == "update-weights":
            sub.add_argument("folder", metavar="FOLDER", help="safetensors files that all workers read")
        if action.name == "set-role":
            sub.add_argument(
                "role", metavar="ROLE", choices=[role.value for role in Role], help=", ".join(Role)
            )
        for flag in (*action.flags, *_ROUTER):
            flag.add_to(sub)


CLIENT_FLAGS: Final = (
    Flag("--address", str, "127.0.0.1:8100", "the router's gRPC port", ADDRESS),
    Flag(
        "--url",
        str,
        None,
        "ask any server of OpenAI's HTTP interface instead, such as http://127.0.0.1:8000/v1",
        SERVER_URL,
    ),
    Flag("--model-name", str, "", "one of the served names; default: the first"),
    Flag("--wait", float, 0.0, "seconds to wait until the router can serve", Range(0, 86_400)),
    *CLIENT_SECURITY_FLAGS,
)


SAMPLING_FLAGS: Final = (
    Flag("--temperature", float, None, "0 is greedy; default: the model's", Range(0)),
    Flag("--top-p", float, None, "default: the model's", SHARE_OVER_0),
    Flag("--top-k", int, None, "0 or -1 is all tokens; default: the model's", Range(-1, MAX_INT)),
    Flag("--seed", int, None, "-1, the default, lets the router choose", Range(-(2**63), 2**63 - 1)),
)


COMPLETE_FLAGS: Final = (
    Flag("--max-tokens", int, 64, "most tokens to generate", POSITIVE),
    Flag("--n", int, 1, "sequences to generate", Range(1, 16_384)),
    Flag("--chat", bool, False, "ask as a user, with the chat template"),
    Flag("--quick", bool, False, "a prompt follows, as without it, or -q"),
    Flag(
        "--other-router",
        str,
        (),
        "another router of the fleet, to go on at where one is lost; repeatable",
        ADDRESS,
        is_list=True,
    ),
)


CHAT_FLAGS: Final = (
    Flag("--max-tokens", int, 512, "most tokens of an answer", POSITIVE),
    Flag("--quick", str, None, "answer this message alone, or -q", metavar="TEXT"),
    Flag("--system", str, "", "system message before the conversation"),
)


KV_EVENTS_FLAGS: Final = (
    Flag("endpoint", str, None, "address where the worker publishes", ENDPOINT, metavar="ENDPOINT"),
    Flag("--replay", str, None, "the worker's replay_endpoint; default: only new events", ENDPOINT),
    Flag("--from", int, 0, "sequence number to begin with", Range(0, 2**63 - 1), metavar="N"),
    Flag("--topic", str, "", "topic that is subscribed to; default: all"),
    Flag(
        "--curve-server-key",
        str,
        "",
        "ZMQ certificate with the worker's public key, where it has a curve_keyfile; default: plain text",
        metavar="FILE",
    ),
)


DRAIN_FLAGS: Final = (
    Flag(
        "--address", str, "127.0.0.1:9100", "the worker's --metrics-port, at the loopback interface", ADDRESS
    ),
    _WAIT,
    *CLIENT_SECURITY_FLAGS,
)


AUTOSCALE_FLAGS: Final = (
    Flag("--address", str, "127.0.0.1:8000", "the router, over HTTP", ADDRESS),
    *CLIENT_SECURITY_FLAGS,
    Flag("--json", bool, False, "print the recommendations as JSON"),
)


EXPLAIN_FLAGS: Final = (
    Flag("--address", str, "127.0.0.1:8000", "the router, over HTTP", ADDRESS),
    *CLIENT_SECURITY_FLAGS,
    Flag("--json", bool, False, "print what the router answers, as it is"),
)
