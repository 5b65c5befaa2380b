"""The program of `make demo` in environments that are in its way."""

from __future__ import annotations

import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import HealthServicer
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def test_a_demo_without_a_cluster_says_why_in_place_of_a_traceback() -> None:
    command = ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh", sys.executable, str(DEMO)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert "the limit of open files (ulimit -n) is 64; allowed: 256 or more" in ended.stderr
    assert ended.stderr.endswith("baton serve ended with exit code 2; its lines above say why\n")
    assert "Traceback" not in ended.stderr


def test_a_demo_passes_by_a_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    health = HealthServicer()
    health.set("", health_pb2.HealthCheckResponse.SERVING)
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        add_HealthServicer_to_server(health, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            runpy.run_path(str(DEMO))["wait_until_ready"](f"127.0.0.1:{port}")
        finally:
            server.stop(None).wait()
