"""The name of a process, which tells it in the log from others of its role."""

from __future__ import annotations

import argparse
import secrets


def process_names(args: argparse.Namespace) -> dict[str, str]:
    """Return the name by its field of a line in JSON; a worker without a name gets one here."""
    if args.command.endswith("-worker"):
        role = args.command.removesuffix("-worker")
        args.worker_id = args.worker_id or f"{role}-{secrets.token_hex(4)}"
        return {"worker_id": args.worker_id}
    if args.command == "router" and args.group_member:
        return {"process": args.group_member.partition(":")[0]}
    return {}
