"""A gateway of the inference extension: a real Envoy asks the endpoint picker of a real router."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.e2e.calls import draw_prompt
from tests.e2e.envoy import DESTINATION, free_port, gateway
from tests.e2e.processes import FLOAT32, KV_CACHE_BYTES, NO_GRAMMARS, Cluster, serving, until
from tests.integration.router_cluster import serving as router_serving
from tools.k8s.programs import find_program

pytestmark = pytest.mark.skipif(
    find_program("envoy") is None, reason="envoy is not there: python -m tools.k8s.programs fetches it"
)
KEY = "key-a"
PREFILL, DECODE = "x-baton-prefill-worker", "x-baton-decode-worker"
TWO_PAIRS = (
    *("--prefill-workers", "2", "--decode-workers", "2", "--kv-cache-memory-bytes", str(KV_CACHE_BYTES)),
    *("--max-num-seqs", "1", "--max-queued-requests", "1", *FLOAT32, *NO_GRAMMARS),
    *("--api-key", KEY, "--api-key", "key-b"),  # with several keys, requests wait at the router
)
PROMPTS = [draw_prompt(400, seed=seed) for seed in range(2)]


@dataclass
class Pairs:
    """Two pairs of workers, and the port of their router's picker."""

    cluster: Cluster
    picker_port: int

    def ran_on(self, request_id: str) -> set[str]:
        """Return the workers of a finished request, by the router's log."""
        found: list[str] = []

        def is_logged() -> bool:
            found.extend(re.findall(rf"\[{request_id}\] finished on ([^:]*):", self.cluster.log.read_text()))
            return bool(found)

        until(is_logged, 10.0, "the line of the request")
        return set(found[0].split(" and "))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pairs]:
    port = free_port()
    folder = tmp_path_factory.mktemp("pairs")
    with serving(folder, *TWO_PAIRS, "--picker-port", str(port)) as cluster:
        yield Pairs(cluster, port)


def ask(client: httpx.Client, prompt: list[int], num_tokens: int = 4, **headers: str) -> httpx.Response:
    body = {"prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True}
    return client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {KEY}", **headers})


@pytest.mark.parametrize("body_mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
def test_requests_run_on_the_picked_pair_where_their_prefix_is(
    pairs: Pairs, body_mode: str, tmp_path: Path
) -> None:
    decoders: list[set[str]] = []
    with gateway(tmp_path, pairs.picker_port, body_mode=body_mode) as client:
        for prompt in PROMPTS:
            decoders.append(set())
            for _ in range(3):
                response = ask(client, prompt)
                assert response.status_code == 200, response.text
                seen = {name: response.headers.get(f"x-seen-{name}") for name in (PREFILL, DECODE)}
                assert response.headers[f"x-seen-{DESTINATION}"] == pairs.cluster.http_address
                assert response.headers["x-seen-metadata"] == pairs.cluster.http_address
                assert pairs.ran_on(response.headers["x-request-id"]) == set(seen.values())
                decoders[-1].add(str(seen[DECODE]))
            assert response.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 300
        assert [len(names) for names in decoders] == [1, 1]
        client.headers["authorization"] = f"Bearer {KEY}"
        assert client.get("/v1/models").status_code == 200
        refused = client.post("/v1/completions", json={"prompt": 5.5})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt")
        assert ask(client, PROMPTS[0], authorization="Bearer c").status_code == 401
        forged = ask(client, PROMPTS[0], **{PREFILL: "nobody", DECODE: "nobody"})
        assert forged.headers[f"x-seen-{DECODE}"] in decoders[0]


def test_load_that_workers_have_no_room_for_is_shed(pairs: Pairs, tmp_path: Path) -> None:
    with gateway(tmp_path, pairs.picker_port) as client, ThreadPoolExecutor(24) as threads:
        responses = list(threads.map(lambda seed: ask(client, draw_prompt(400, seed=seed), 60), range(24)))
    statuses = Counter(response.status_code for response in responses)
    assert statuses.keys() == {200, 429}, statuses
    shed = next(response for response in responses if response.status_code == 429)
    assert shed.json()["error"]["message"].endswith("wait for a worker, the maximum")
    assert int(shed.headers["retry-after"]) >= 1


def test_a_gateways_subset_limits_the_choice(pairs: Pairs, tmp_path: Path) -> None:
    own = pairs.cluster.http_address
    for subset, status in (([own], 200), (["127.0.0.1"], 200), (["127.0.0.2:80"], 503), ([], 503)):
        with gateway(tmp_path, pairs.picker_port, subset=subset) as client:
            response = ask(client, PROMPTS[0])
            assert response.status_code == status, response.text


def test_a_pool_that_is_not_ready_gives_503(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with router_serving(picker_port=0) as server:
            with gateway(tmp_path, server.picker_port) as client:
                response = await asyncio.to_thread(ask, client, PROMPTS[0])
                assert response.status_code == 503
                assert response.json()["error"]["message"] == "no worker is registered"
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server.picker_port}") as channel:
                stub, status = health_pb2_grpc.HealthStub(channel), health_pb2.HealthCheckResponse
                names = ("liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor")
                replies = [await stub.Check(health_pb2.HealthCheckRequest(service=name)) for name in names]
            assert [reply.status for reply in replies] == [
                status.SERVING,
                status.NOT_SERVING,
                status.NOT_SERVING,
            ]

    asyncio.run(scenario())
