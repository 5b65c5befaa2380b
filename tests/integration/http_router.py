"""A router that runs in the test's loop, and an HTTP client of it over a real socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx

from baton_router.main import RouterServer
from tests.integration.router_cluster import access_to, serving
from tests.integration.scripted_worker import ScriptedWorker


@asynccontextmanager
async def http_cluster(*workers: ScriptedWorker, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a router with workers that have joined."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(**settings))
        for worker in workers:
            await stack.enter_async_context(worker.joined(server.grpc_port, access_to(server)))
        yield await stack.enter_async_context(client_of(server))


def client_of(server: RouterServer, **options: Any) -> httpx.AsyncClient:
    """A client of plain HTTP, without the authorities that one reads for 50 ms."""
    return httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{server.http_port}", timeout=20.0, verify=False, **options
    )


def chunks_of(body: str) -> list[dict[str, Any]]:
    """The chunks of a whole stream, which ends as OpenAI's do."""
    *events, last, rest = body.split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def error_of(response: httpx.Response) -> tuple[int, str | None, str]:
    """Status, the field that is to blame and the message of an error, whose body is as OpenAI's."""
    error = response.json()["error"]
    assert set(response.json()) <= {"error", "detail"}
    assert set(error) == {"message", "type", "param", "code"}
    return response.status_code, error["param"], error["message"]
