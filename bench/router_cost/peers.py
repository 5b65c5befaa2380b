"""Other servers under measurement: SGLang's router before a bare server, vLLM's API server, and Granian."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx

from baton.config.engine_args import BUNDLED_MODEL
from bench.peer.engine_process import EngineProcess
from bench.peer.engines import Engines
from bench.processes import free_port
from bench.router_cost.servers import Server, running_bare_server

READY_WITHIN_S: Final = 300.0


@contextmanager
def running_sglang(environment: Path) -> Iterator[Server]:
    """Run SGLang's router, of a virtual environment, before a bare server."""
    with running_bare_server() as bare, tempfile.TemporaryDirectory() as logs:
        port = free_port()
        command = [str(environment / "bin" / "python"), "-m", "sglang_router.launch_router"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"]
        command += ["--worker-urls", f"http://{bare.addresses['http_address']}"]
        command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
        log = Path(logs) / "log"
        with EngineProcess("sglang", [*command, "--log-level", "warn"], log=log, environment={}) as process:
            yield _server(process, port)


@contextmanager
def running_vllm(folder: Path) -> Iterator[Server]:
    """Run vLLM with the bundled model, which its first process serves over HTTP."""
    with tempfile.TemporaryDirectory() as logs:
        engines = Engines(model=Path(BUNDLED_MODEL), peer_folder=folder, dtype="bfloat16", logs=Path(logs))
        (process,), client = engines.serve("vllm", "--disable-uvicorn-access-log")
        with process:
            yield _server(process, client.port)


@contextmanager
def running_granian() -> Iterator[Server]:
    """Run the application of the bare server on Granian instead of uvicorn."""
    with tempfile.TemporaryDirectory() as logs:
        port = free_port()
        command = [sys.executable, "-m", "granian", "--interface", "asgi", "--loop", "asyncio", "--no-log"]
        command += ["--host", "127.0.0.1", "--port", str(port), "bench.router_cost.bare_server:app"]
        with EngineProcess("granian", command, log=Path(logs) / "log", environment={}) as process:
            started = _server(process, port)
            yield Server(process.pids, started.addresses)


def _server(process: EngineProcess, port: int) -> Server:
    """Wait until a server answers.

    Raises:
        EngineFailedError: it has ended, or does not answer in time.
    """
    deadline_s, body = time.monotonic() + READY_WITHIN_S, {"model": "model", "prompt": "a", "max_tokens": 1}
    while time.monotonic() < deadline_s:
        process.check_alive()
        try:
            answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=30.0)
            if answer.is_success:
                return Server(process.pids[:1], {"http_address": f"127.0.0.1:{port}"})
        except httpx.HTTPError:
            pass  # it does not listen yet
        time.sleep(0.5)
    raise process.failure(f"does not answer within {READY_WITHIN_S:g} s")
