"""The pods of one LeaderWorkerSet of the chart as processes: a worker of two ranks on two machines."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton_proto.v1.baton_pb2_grpc import BatonStub
from tests.e2e.processes import KV_CACHE_BYTES, NO_GRAMMARS
from tests.integration.router_cluster import MODEL, PATIENT_S, ask, serving, tokens_of
from tests.integration.scripted_worker import until
from tools.k8s.manifests import GOLDEN, Container, containers, read_manifests

LEADER: Final = "127.0.78.10"
VARIABLES: Final = {
    "POD_IP": LEADER,
    "POD_NAME": "decode-0",
    "LWS_LEADER_ADDRESS": LEADER,
    "LWS_WORKER_INDEX": "1",
}
SMALL: Final = ("--kv-cache-memory-bytes", str(KV_CACHE_BYTES), *NO_GRAMMARS)
WITHIN_S: Final = 120.0


def command_of(container: Container, router: str) -> list[str]:
    """Return a pod's command with this machine's addresses and model, and a router in the place of Redis."""
    words = container.command_with(VARIABLES)
    for flag in ("--redis", "--redis-namespace"):
        if flag in words:
            at = words.index(flag)
            del words[at : at + 2]
            words += ["--router", router] if flag == "--redis" else []
    words = [word.replace("/models/large", str(MODEL)).replace("0.0.0.0", LEADER) for word in words]
    return [*words, *SMALL]


async def is_serving(service: str) -> bool:
    """Ask as the leader's gRPC probes do."""
    async with grpc.aio.insecure_channel(f"{LEADER}:9101") as channel:
        stub, request = health_pb2_grpc.HealthStub(channel), health_pb2.HealthCheckRequest(service=service)
        try:
            reply = await stub.Check(request, timeout=5.0)
        except grpc.aio.AioRpcError:
            return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


def test_the_pods_of_a_group_are_one_worker_that_serves_and_is_drained(tmp_path: Path) -> None:
    """From the rendered arguments to an answer, then the hook and SIGTERM as a kubelet sends them."""
    manifests = read_manifests((GOLDEN / "ranks.yaml").read_text())
    leader, follower = (one for one in containers(manifests) if one.owner == "demo-baton-decode")

    async def scenario() -> None:
        async with serving(split="auto", session_timeout_s=PATIENT_S) as server:
            router = f"127.0.0.1:{server.grpc_port}"
            with (tmp_path / "log").open("wb") as log:
                pods = [
                    await asyncio.create_subprocess_exec(
                        sys.executable, "-m", *command_of(one, router), stdout=log, stderr=log
                    )
                    for one in (leader, follower)
                ]
                try:
                    workers = server.router.fleet.workers
                    await until(lambda: bool(workers()) or any(pod.returncode for pod in pods), WITHIN_S)
                    assert workers(), (tmp_path / "log").read_text()
                    assert [await is_serving(name) for name in ("started", "liveness", "readiness")] == [
                        True
                    ] * 3
                    async with grpc.aio.insecure_channel(router) as channel:
                        _, finished = await tokens_of(BatonStub(channel).Generate(ask(max_tokens=8)))
                    assert finished.timings.decode_worker == "decode-0"
                    hook = leader.spec["lifecycle"]["preStop"]["exec"]["command"]
                    words = [word.replace("127.0.0.1", LEADER) for word in hook]
                    drain = await asyncio.create_subprocess_exec(sys.executable, "-m", *words)
                    assert await asyncio.wait_for(drain.wait(), WITHIN_S) == 0
                    assert [await is_serving(name) for name in ("liveness", "readiness")] == [True, False]
                    pods[0].terminate()
                    ends = [asyncio.wait_for(pod.wait(), WITHIN_S) for pod in pods]
                    assert await asyncio.gather(*ends) == [0, 0], (tmp_path / "log").read_text()
                finally:
                    for pod in pods:
                        if pod.returncode is None:
                            pod.kill()
                            await pod.wait()

    asyncio.run(asyncio.wait_for(scenario(), 3 * WITHIN_S))
