"""Every TCP connection has TCP_NODELAY: without it the second of two small writes waits 40 ms."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton_core.sessions.worker_info import Role
from baton_kv.transport import Transport
from baton_service.router_access import RouterAccess
from baton_service.tls import ClientTls, ServerTls
from baton_worker.metrics_server import serving_metrics
from tests.builders import open_probes
from tests.certificates import Authority, needs_openssl
from tests.e2e.calls import answer, draw_prompt, greedy
from tests.integration.http_router import chunks_of
from tests.integration.router_cluster import ANSWER, PROMPT, TEXT, serving
from tests.integration.scripted_worker import ScriptedWorker, until
from tests.integration.worker_cluster import Said, routing, working
from tests.redis_server import needs_redis, redis_server
from tests.tcp_sockets import sends_at_once, tcp_connections

ASKED = {"prompt": PROMPT, "max_tokens": len(ANSWER), "stream": True}


@pytest.mark.parametrize("is_encrypted", [False, pytest.param(True, marks=needs_openssl)])
async def test_streams_on_a_kept_connection_are_sent_at_once(is_encrypted: bool, tmp_path: Path) -> None:
    served, trusted = ServerTls(), ClientTls()
    if is_encrypted:
        authority = Authority.make(tmp_path)
        pair = authority.issue("router")
        served = ServerTls(certfile=pair.certfile, keyfile=pair.keyfile)
        trusted = ClientTls(ca_certs=authority.own.certfile)
    worker = ScriptedWorker("w1", answers=[ANSWER])
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(tls=served))
        await stack.enter_async_context(worker.joined(server.grpc_port, RouterAccess(trusted)))
        url = f"{'https' if is_encrypted else 'http'}://127.0.0.1:{server.http_port}"
        verify = trusted.client_context() if is_encrypted else False
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, verify=verify))
        for _ in range(2):
            said = await client.post("/v1/completions", json=ASKED, timeout=20.0)
            assert "".join(chunk["choices"][0]["text"] for chunk in chunks_of(said.text)) == TEXT
            assert accepted_at(server.http_port) == [True], "one connection, kept"


@needs_redis
@pytest.mark.parametrize("transport", [Transport.TCP, Transport.SHARED_MEMORY])
async def test_no_connection_of_a_cluster_holds_data_back(
    transport: Transport, said: Said, tmp_path: Path
) -> None:
    """Sessions, the peer channel, KV blocks, Redis, and clients over gRPC."""
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(redis_server(tmp_path))
        cluster = await stack.enter_async_context(routing(said))
        for role in (Role.PREFILL, Role.DECODE):
            joining = working(role, cluster.port, kv_transport=transport, redis=redis.settings())
            await stack.enter_async_context(joining)
        await cluster.wait_for_idle("prefill", "decode")
        _, finished = answer([event async for event in cluster.ask("r1", draw_prompt(100, 1), greedy(4))])
        assert finished.timings.transferred_bytes > 0
        assert holding_back() == []


async def test_the_metrics_server_sends_at_once() -> None:
    with serving_metrics("127.0.0.1", 0, open_probes()) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await until(lambda: accepted_at(server.port) != [])
        assert accepted_at(server.port) == [True]
        writer.close()
        await writer.wait_closed()


def holding_back() -> list[tuple[Any, Any]]:
    """Both ends' addresses of this process's connections that may hold data back."""
    with tcp_connections() as found:
        assert found
        return [(each.getsockname(), each.getpeername()) for each in found if not sends_at_once(each)]


def accepted_at(port: int) -> list[bool]:
    """A flag for each connection that was accepted at `port` of this process: it sends at once."""
    with tcp_connections() as found:
        return [sends_at_once(each) for each in found if each.getsockname()[1] == port]
