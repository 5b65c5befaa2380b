"""Actions of `baton admin` and their flags, which stand behind the action."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Final

from baton.commands.flags import ADDRESS, Flag
from baton.commands.security_arguments import CLIENT_SECURITY_FLAGS
from baton_core.sessions.worker_info import Role

_ROUTER: Final = (
    Flag("--address", str, "127.0.0.1:8100", "the router", form=ADDRESS, metavar="HOST:PORT"),
    *CLIENT_SECURITY_FLAGS,
)
_FORCE: Final = Flag("--force", bool, False, "even if no worker is left that prefills, or none that decodes")
_WAIT: Final = Flag(
    "--wait",
    float,
    None,
    "wait until the worker is empty, so many seconds at most; default: do not wait",
    low=0,
    high=86_400,
    is_low_open=True,
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
)


def add_actions(parser: argparse.ArgumentParser) -> None:
    """Mutate the parser of `baton admin`."""
    parsers = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for action in _ACTIONS:
        description = action.help.capitalize() + "."
        sub = parsers.add_parser(action.name, help=action.help, description=description, allow_abbrev=False)
        if action.has_worker:
            sub.add_argument("worker_id", metavar="WORKER", help="its name")
        if action.name == "set-role":
            sub.add_argument(
                "role", metavar="ROLE", choices=[role.value for role in Role], help=", ".join(Role)
            )
        for flag in (*action.flags, *_ROUTER):
            flag.add_to(sub)
