"""`baton kv-events`: prints what a worker publishes of its cache, one JSON object on a line."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from contextlib import aclosing
from typing import Any

import msgspec

from baton.kv_events.consumer import KVEventFollower
from baton_core.kv_events.event_stream import FollowedChange
from baton_kv.curve import read_public_key
from baton_service.process import run_until_signal


def kv_events(args: argparse.Namespace) -> int:
    """Print events until a signal comes or the output is closed.

    Raises:
        InvalidConfigError: the file of the key cannot be used.
    """
    file = args.curve_server_key
    follower = KVEventFollower(
        args.endpoint,
        args.replay,
        topic=args.topic,
        first=getattr(args, "from"),
        server_key=read_public_key("--curve-server-key", file) if file else None,
    )
    sys.stderr.write(f"baton kv-events: waiting for events from {args.endpoint}\n")
    asyncio.run(run_until_signal(_print(follower)))
    return 0


async def _print(follower: KVEventFollower) -> None:
    async with aclosing(follower.changes()) as changes:
        async for change in changes:
            for line in event_lines(change):
                sys.stdout.write(line + "\n")
            sys.stdout.flush()


def event_lines(change: FollowedChange) -> list[str]:
    """The events of one batch, bytes in hexadecimal; `is_snapshot` voids what was printed before it."""
    head = {"sequence": change.sequence, "ts": change.batch.ts, "is_snapshot": change.delta.is_snapshot}
    return [
        json.dumps({**head, "type": type(event).__name__, **_readable(msgspec.structs.asdict(event))})
        for event in change.batch.events
    ]


def _readable(value: Any) -> Any:
    match value:
        case bytes():
            return value.hex()
        case dict():
            return {str(name): _readable(one) for name, one in value.items()}
        case list() | tuple():
            return [_readable(one) for one in value]
        case _:
            return value
