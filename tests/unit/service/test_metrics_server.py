"""Metrics and health of a service over HTTP, answered by its loop."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from baton_core.errors import InvalidConfigError
from baton_service.exposition import Exposition, Family, Kind
from baton_service.tls import ClientTls, ServerTls
from baton_worker import metrics_server, probes
from baton_worker.core.controls import OpenWork
from baton_worker.health_server import HealthServer
from baton_worker.metrics_server import MetricsServer, serving_metrics
from tests.builders import open_probes
from tests.certificates import Authority, needs_openssl
from tests.ipv6 import needs_ipv6

pytestmark = pytest.mark.slow

STEPS = Family(name="baton_steps", kind=Kind.COUNTER, text="Steps", labels=("worker",))


class Service:
    problem = "no router"
    why_not_ready = "no router"

    def exposition(self) -> Exposition:
        page = Exposition((STEPS,))
        page.add(STEPS, 3, 'w"1')
        return page


def get(
    port: int,
    path: str,
    method: str = "GET",
    *,
    trusted: ssl.SSLContext | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    if trusted is not None:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=trusted)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


async def test_it_tells_of_what_it_watches_and_is_as_healthy() -> None:
    answers = open_probes()
    with serving_metrics("127.0.0.1", 0, answers) as server:
        assert (await asyncio.to_thread(get, server.port, "/health"))[0] == 503
        assert (await asyncio.to_thread(get, server.port, "/metrics"))[0] == 503
        service = Service()
        answers.watch(service)
        assert (await asyncio.to_thread(get, server.port, "/health")) == (503, "no router\n")
        service.problem = ""
        assert (await asyncio.to_thread(get, server.port, "/health")) == (200, "")
        status, text = await asyncio.to_thread(get, server.port, "/metrics?name=x")
        families = text_string_to_metric_families(text)
        others = ("process_", "baton_log_lines")
        (family,) = [one for one in families if not one.name.startswith(others)]
        (sample,) = family.samples
        assert (status, sample.name, sample.value) == (200, "baton_steps_total", 3)
        assert sample.labels == {"worker": 'w"1'}
        assert (await asyncio.to_thread(get, server.port, "/metrics", "HEAD")) == (200, "")
        assert (await asyncio.to_thread(get, server.port, "/"))[0] == 404
        port = server.port
    with pytest.raises(ConnectionRefusedError):
        await asyncio.to_thread(get, port, "/health")


async def test_a_loop_that_hangs_is_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "ANSWER_WITHIN_S", 0.05)
    answers = open_probes()
    with serving_metrics("127.0.0.1", 0, answers) as server:
        service = Service()
        service.problem = ""
        answers.watch(service)
        with ThreadPoolExecutor(1) as pool:
            for path in ("/health", "/live"):
                asking = pool.submit(get, server.port, path)
                assert asking.result(timeout=10)[0] == 503, "the loop does nothing else meanwhile"


async def test_a_port_in_use_is_refused_by_its_flag() -> None:
    with serving_metrics("127.0.0.1", 0, open_probes()) as server:
        said = f"--metrics-port is {server.port}, which cannot be taken on 127.0.0.1"
        with pytest.raises(InvalidConfigError, match=said):
            MetricsServer("127.0.0.1", server.port, open_probes())


@pytest.mark.parametrize("is_encrypted", [False, pytest.param(True, marks=needs_openssl)])
async def test_who_asks_is_answered_beside_more_silent_connections_than_may_be(
    is_encrypted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "MAX_CALLS", 4)
    monkeypatch.setattr(metrics_server, "_READ_WITHIN_S", 60.0)
    served = trusted = None
    if is_encrypted:
        authority = Authority.make(tmp_path)
        pair = authority.issue("worker")
        served = ServerTls(certfile=pair.certfile, keyfile=pair.keyfile).http_context()
        trusted = ClientTls(ca_certs=authority.own.certfile).client_context()
    with serving_metrics("127.0.0.1", 0, open_probes(), served) as server:
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(40)]
        try:
            for reader, _ in silent[:36]:
                assert await reader.read() == b""
            for _ in range(8):
                answer = await asyncio.to_thread(get, server.port, "/health", trusted=trusted)
                assert answer == (503, "still starting\n")
        finally:
            for _, writer in silent:
                writer.close()


async def test_who_asks_is_answered_where_an_ended_connection_frees_its_place_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics_server, "MAX_CALLS", 1)
    frees = metrics_server._BoundedServer.shutdown_request

    def frees_late(server: metrics_server._BoundedServer, request: Any) -> None:
        time.sleep(0.6)
        frees(server, request)

    monkeypatch.setattr(metrics_server._BoundedServer, "shutdown_request", frees_late)
    with serving_metrics("127.0.0.1", 0, open_probes()) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            for _ in range(2):
                assert await asyncio.to_thread(get, server.port, "/health") == (503, "still starting\n")
        finally:
            writer.close()


async def test_a_worker_is_live_before_it_is_started_and_ready_only_while_it_takes_requests() -> None:
    def probe(port: int) -> list[int]:
        return [get(port, path)[0] for path in ("/live", "/started", "/ready", "/health")]

    answers = open_probes()
    with serving_metrics("127.0.0.1", 0, answers) as server:
        assert await asyncio.to_thread(probe, server.port) == [200, 503, 503, 503]
        service = Service()
        answers.watch(service)
        assert await asyncio.to_thread(probe, server.port) == [200, 200, 503, 503]
        service.problem, service.why_not_ready = "", "the worker drains"
        assert await asyncio.to_thread(probe, server.port) == [200, 200, 503, 200]
        service.why_not_ready = ""
        assert await asyncio.to_thread(probe, server.port) == [200, 200, 200, 200]


async def test_a_drain_needs_a_key_and_a_worker() -> None:
    answers = open_probes("secret")
    work = OpenWork(num_requests=2)
    with serving_metrics("127.0.0.1", 0, answers) as server:
        assert (await asyncio.to_thread(get, server.port, "/drain", "POST"))[0] == 401
        assert (await asyncio.to_thread(get, server.port, "/drain"))[0] == 404
        assert answers.post("/drain", "Bearer secret", is_local=True)[0] == 503
        answers.watch(Service(), lambda: work)
        assert answers.post("/drain", "Bearer secret", is_local=False)[0] == 403
        assert answers.post("/nothing", "Bearer secret", is_local=True)[0] == 404
        asked = await asyncio.to_thread(answers.post, "/drain", "Bearer secret", is_local=True)
        assert (asked[0], OpenWork(**json.loads(asked[1]))) == (200, work)


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
async def test_a_page_in_a_browser_drains_no_worker(headers: dict[str, str]) -> None:
    answers = open_probes()
    answers.watch(Service(), lambda: pytest.fail("the worker drains"))
    with serving_metrics("127.0.0.1", 0, answers) as server:
        asked = await asyncio.to_thread(get, server.port, "/drain", "POST", headers=headers)
        assert asked == (403, "allowed: a call without Origin and Sec-Fetch-Site, of no page\n")


@needs_ipv6
async def test_a_port_of_both_families_knows_its_own_machine_by_either() -> None:
    answers = open_probes()
    answers.watch(Service(), lambda: OpenWork(num_requests=0))
    with serving_metrics("[::]", 0, answers) as server:
        assert (await asyncio.to_thread(get, server.port, "/drain", "POST"))[0] == 200


async def test_grpc_health_tells_readiness_from_liveness() -> None:
    answers, service = open_probes(), Service()
    server = HealthServer("127.0.0.1", 0, answers)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        async def status(service: str) -> int:
            request = health_pb2.HealthCheckRequest(service=service)
            return int((await stub.Check(request, timeout=5)).status)

        response = health_pb2.HealthCheckResponse
        assert await status("liveness") == response.SERVING
        assert await status("readiness") == response.NOT_SERVING
        assert await status("started") == response.NOT_SERVING
        answers.watch(service)
        assert await status("started") == response.SERVING
        assert await status("readiness") == response.NOT_SERVING
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=5)
        assert (await watch.read()).status == response.NOT_SERVING
        service.why_not_ready = ""
        assert (await watch.read()).status == response.SERVING
        assert await status("") == response.SERVING
        with pytest.raises(grpc.aio.AioRpcError, match="allowed: liveness, started, readiness, or none"):
            await status("other")
        watch.cancel()
    with pytest.raises(InvalidConfigError, match=f"--health-port is {server.port}"):
        HealthServer("127.0.0.1", server.port, open_probes())
    await server.close()
