"""`baton autoscale`: shows how many workers each role should have, and why."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import msgspec

from baton.commands.router_pages import fetch_page
from baton_router.core.fleet.scaling import RoleScaling


class _Scaling(msgspec.Struct):
    """The part of `/debug/cluster` that is read."""

    scaling: list[RoleScaling]


def autoscale(args: argparse.Namespace) -> int:
    """Print the recommendations of the router at `args.address`.

    Raises:
        RequestError: no router answers, or it refuses.
    """
    page, _ = fetch_page(args, "/debug/cluster", _Scaling)
    roles = page.scaling
    text = msgspec.json.format(msgspec.json.encode(roles)).decode() if args.json else lines(roles)
    sys.stdout.write(f"{text}\n")
    return 0


def lines(roles: Sequence[RoleScaling]) -> str:
    """Return a line for each role."""
    return "\n".join(
        f"{one.role}: {one.num_workers} -> {one.num_desired} (needs {one.num_needed:.1f}): {one.reason}"
        for one in roles
    )
