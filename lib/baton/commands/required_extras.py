"""Extras that each command needs, looked for before it imports anything of them."""

from __future__ import annotations

import argparse
from typing import Final

from baton.extras import MissingExtraError, install_command, require_extras

_OF_COMMAND: Final = {
    "serve": ("router", "worker"),
    "router": ("router",),
    "prefill-worker": ("worker",),
    "decode-worker": ("worker",),
    "mixed-worker": ("worker",),
    "kv-events": ("kv-events",),
    "bench serve": ("bench",),
    "bench sweep": ("bench",),
    "bench latency": ("bench", "worker"),
    "bench throughput": ("bench", "worker"),
}
"""Every other command runs with what Baton always needs."""
_OF_FLAG: Final = {"otlp_traces_endpoint": ("tracing",), "plot": ("simulate",)}


def check_extras(args: argparse.Namespace) -> None:
    """Do nothing where all that a command line needs is installed.

    Raises:
        MissingExtraError: it needs a package that is not installed; the message names the extra.
    """
    name = f"bench {args.benchmark}" if args.command == "bench" else args.command
    require_extras(f"baton {name}", *_OF_COMMAND.get(name, ()))
    for field, extras in _OF_FLAG.items():
        if getattr(args, field, None):
            require_extras(f"baton {name} --{field.replace('_', '-')}", *extras)
    if getattr(args, "kv_transport", "") == "nixl":
        _check_nixl(name)


def _check_nixl(name: str) -> None:
    """One of two packages is enough, so metadata does not say whether it is missing."""
    from baton_kv.nixl_library import find_build  # loads nothing, but only workers need it

    if find_build() is None:
        text = f"baton {name} --kv-transport nixl needs nixl-cu12 or nixl-cu13"
        raise MissingExtraError(f"{text}: {install_command('nixl')}")
