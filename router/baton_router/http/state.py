"""How the router is: health, version, load, metrics."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

import msgspec
from starlette.responses import Response

from baton_router.http.calls import Call
from baton_service.exposition import CONTENT_TYPE

RETRY_AFTER_S: Final = 1


class Version(msgspec.Struct, kw_only=True):
    """Of Baton."""

    version: str


class Load(msgspec.Struct, kw_only=True):
    """How much the router has to do."""

    server_load: int
    """Calls that are open now, over HTTP and gRPC."""


async def health(call: Call[None]) -> None:
    """200 when a prompt can be served now, else 503 and why not; broken pairs of workers are told."""
    door = call.site.door
    why_not = door.why_not_ready
    lines = [line for line in (why_not, *door.broken_pairs) if line]
    text = "".join(f"{line}\n" for line in lines)
    headers = {"retry-after": str(RETRY_AFTER_S)} if why_not else None
    status = 503 if why_not else 200
    await call.respond(Response(text, status, headers, "text/plain") if text else Response())


async def show_version(call: Call[None]) -> None:
    await call.reply(Version(version=version("baton")))


async def load(call: Call[None]) -> None:
    await call.reply(Load(server_load=call.site.door.num_calls))


async def metrics(call: Call[None]) -> None:
    await call.respond(Response(call.site.metrics.exposition().text(), media_type=CONTENT_TYPE))
