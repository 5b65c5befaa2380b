"""Keys: on every route but those of health."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from dataclasses import replace

import httpx
import pytest

from baton_core.errors import InvalidConfigError
from baton_router.http.routes import OPERATOR_ROUTES, ROUTES
from baton_router.process.http_settings import HttpSettings
from baton_service.router_access import RouterAccess
from tests.integration.http_router import error_of, http_cluster
from tests.integration.router_cluster import ANSWER, MODEL, serving
from tests.integration.scripted_worker import ScriptedWorker, until

KEYED = HttpSettings(api_keys=("first-key", "second-key"), enable_operator_routes=True)
OPEN = {"/health", "/live", "/ready", "/ping", "/", "/dashboard", "/docs", "/pages/chat.js"}


async def test_no_route_but_health_and_the_pages_answers_without_a_key() -> None:
    async with http_cluster(ScriptedWorker("w1", answers=[ANSWER]), http=KEYED) as client:
        for route in (*ROUTES, *OPERATOR_ROUTES):
            path = route.path.replace("{name}", "chat.js")
            status = (await client.request(route.method, path)).status_code
            assert status == (200 if path in OPEN else 401), path
        for method, path in (("GET", "/openapi.json"), ("GET", "/nope"), ("PUT", "/v1/models")):
            response = await client.request(method, path)
            assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")


async def test_each_key_opens_and_nothing_else_does() -> None:
    async with http_cluster(ScriptedWorker("w1", answers=[ANSWER]), http=KEYED) as client:
        for key in KEYED.api_keys:
            assert (await ask(client, f"Bearer {key}")).status_code == 200
        assert (await ask(client, "bearer first-key")).status_code == 200
        for wrong in ("", "first-key", "Bearer", "Bearer first", "Basic first-key", "Bearer é"):
            response = await ask(client, wrong)
            assert error_of(response)[:2] == (401, None)
            assert response.json()["error"]["code"] == "invalid_api_key"


async def ask(client: httpx.AsyncClient, authorization: str) -> httpx.Response:
    headers = [(b"authorization", authorization.encode("latin-1"))]
    return await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}, headers=headers)


@pytest.mark.parametrize(
    ("site", "origin", "status"),
    [
        ("cross-site", "https://evil.example", 403),
        ("same-site", "http://localhost:3000", 403),
        ("", "http://evil.example", 403),
        ("", "null", 403),
        ("cross-site", "https://friend.example", 200),
        ("same-origin", "https://behind.a.proxy", 200),
        ("", "http://own", 200),
        ("none", "", 200),
        ("", "", 200),
    ],
)
async def test_pages_of_other_sites_do_nothing_without_a_key(site: str, origin: str, status: int) -> None:
    settings = HttpSettings(enable_operator_routes=True, allowed_origins=("https://friend.example",))
    given = (("sec-fetch-site", site), ("origin", origin), ("host", "own"))
    headers = {name: value for name, value in given if value}
    async with http_cluster(ScriptedWorker("w1", answers=[ANSWER]), http=settings) as client:
        drained = await client.post("/drain?worker_id=nobody", headers=headers)
        assert (drained.status_code == 403) is (status == 403)
        body = {"prompt": "x", "max_tokens": 1}
        response = await client.post("/v1/completions", json=body, headers=headers)
        assert response.status_code == status
        if status == 403:
            allowed = "this server's own pages, https://friend.example (--allowed-origins)"
            assert error_of(response)[2] == f"origin is '{origin}'; allowed: {allowed}"
        assert (await client.get("/v1/models", headers=headers)).status_code == 200


async def test_with_a_key_pages_of_every_origin_may_call_and_nothing_else_lets_them() -> None:
    origin = {"origin": "app://obsidian.md"}
    preflight = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    body = {"prompt": "x", "max_tokens": 1}
    async with http_cluster(ScriptedWorker("w1", answers=[ANSWER]), http=KEYED) as client:
        asked = await client.options("/v1/completions", headers={**origin, **preflight})
        assert (asked.status_code, asked.headers["access-control-allow-headers"]) == (200, "authorization")
        bearer = "Bearer first-key"
        for name, shown, status in (
            ("authorization", bearer, 200),
            ("x-api-key", "first-key", 200),
            ("cookie", f"authorization={bearer}", 401),
        ):
            response = await client.post("/v1/completions", json=body, headers={**origin, name: shown})
            assert response.status_code == status
            assert response.headers["access-control-allow-origin"] == "*"
            assert "access-control-allow-credentials" not in response.headers
        assert (await client.post("/ping", headers=origin)).status_code == 403
    async with http_cluster(http=HttpSettings(allow_credentials=True)) as client:
        asked = await client.options("/v1/completions", headers={**origin, **preflight})
        refused = await client.post("/v1/completions", json=body, headers=origin)
        assert (asked.status_code, refused.status_code) == (405, 403)
        for response in (asked, refused):
            assert "access-control-allow-origin" not in response.headers
            assert all(flag in error_of(response)[2] for flag in ("--allowed-origins", "--api-key"))


@pytest.mark.parametrize(
    ("host", "keys", "status"),
    [
        ("rebound.example:8000", (), 403),
        ("gpu-host:8000", (), 200),
        ("localhost:8000", (), 200),
        ("127.0.0.1:8000", (), 200),
        ("[::1]:8000", (), 200),
        ("[::1]", (), 200),
        ("named.example:8000", (), 200),
        ("rebound.example:8000", ("key",), 200),
    ],
)
async def test_a_page_at_a_name_of_somebody_else_does_nothing_without_a_key(
    host: str, keys: tuple[str, ...], status: int
) -> None:
    settings = HttpSettings(enable_operator_routes=True, api_keys=keys)
    headers = {"host": host, "origin": f"http://{host}", "authorization": "Bearer key"}
    async with http_cluster(http=settings, advertise_host="named.example") as client:
        response = await client.post("/tokenize", json={"prompt": "x"}, headers=headers)
        assert response.status_code == status
        if status == 403:
            assert error_of(response)[2].startswith(f"host of a page is '{host}'; allowed: an IP address")


@pytest.mark.parametrize("key", ["", "with space", "umlaut-ü", "line\n"])
def test_a_key_that_no_header_can_carry_is_refused(key: str) -> None:
    with pytest.raises(InvalidConfigError, match="--api-key"):
        HttpSettings(api_keys=(key,))


async def test_metrics_alone_may_be_opened() -> None:
    async with http_cluster(http=replace(KEYED, open_metrics=True)) as client:
        assert (await client.get("/metrics")).status_code == 200
        assert (await client.get("/load")).status_code == 401
        headers = {"authorization": "Bearer first-key"}
        paths = (await client.get("/openapi.json", headers=headers)).json()["paths"]
        assert [path for path in ("/metrics", "/load") if "security" in paths[path]["get"]] == ["/load"]


async def test_a_worker_needs_a_key_too(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        worker = ScriptedWorker("w1")
        async with serving(http=KEYED) as server:
            address = f"127.0.0.1:{server.grpc_port}"
            for key in ("", "third-key"):
                caplog.clear()
                joining = asyncio.create_task(
                    worker.joined(server.grpc_port, RouterAccess(key=key)).__aenter__()
                )
                await until(lambda: bool(caplog.messages))
                said = caplog.messages[0]
                assert said.startswith(f"router {address} refuses this worker: Incorrect API key")
                assert said.endswith("; it wants a key, by --api-key or BATON_API_KEY; trying on")
                assert worker.client.refusal is not None
                assert said == f"{worker.client.refusal.message}; trying on"
                joining.cancel()
                await asyncio.gather(joining, return_exceptions=True)
                await worker.client.close()
            async with worker.joined(server.grpc_port, RouterAccess(key="second-key")):
                assert worker.has_joined


def test_a_router_process_takes_its_key_from_the_environment() -> None:
    read_fd, write_fd = os.pipe()
    flags = ("--port", "0", "--grpc-port", "0", "--report-fd", str(write_fd), "--log-level", "error")
    router = subprocess.Popen(
        [sys.executable, "-m", "baton", "router", str(MODEL), *flags],
        pass_fds=(write_fd,),
        env={**os.environ, "BATON_API_KEY": "from-outside"},
    )
    os.close(write_fd)
    try:
        with os.fdopen(read_fd) as pipe:
            said = json.loads(pipe.readline())
        assert said.keys() == {"address", "http_address"}
        models = f"http://{said['http_address']}/v1/models"
        assert httpx.get(models).status_code == 401
        assert httpx.get(models, headers={"authorization": "Bearer from-outside"}).status_code == 200
    finally:
        router.terminate()
        assert router.wait(10) == 0
