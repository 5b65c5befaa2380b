"""Connections that say nothing, more than a process has descriptors for, cost their own alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.http_router import chunks_of
from tests.integration.router_cluster import ANSWER, MODEL, PROMPT, TEXT
from tests.integration.scripted_worker import ScriptedWorker
from tests.silent_connections import NUM_DESCRIPTORS, NUM_SILENT, many_descriptors, silent_connections
from tests.tiers import exhaustive

MAX_LOG_BYTES = 16_000
MAX_GROWTH_BYTES = 64 * 2**20
ASKED: dict[str, Any] = {"prompt": PROMPT, "max_tokens": len(ANSWER), "stream": True, "temperature": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterProcess:
    pid: int
    log: Path
    http_port: int
    grpc_port: int

    @property
    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    @property
    def num_descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))


@asynccontextmanager
async def router_process(folder: Path, ulimit: str) -> AsyncIterator[RouterProcess]:
    """A router in a shell with `ulimit`."""
    read_fd, write_fd = os.pipe()
    flags = ("--port", "0", "--grpc-port", "0", "--session-timeout", "10", "--shutdown-timeout", "0")
    names = ("--served-model-name", "tiny", "--report-fd", str(write_fd))
    command = (sys.executable, "-m", "baton", "router", str(MODEL), *names, *flags)
    log = folder / "log"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", f"ulimit {ulimit} {NUM_DESCRIPTORS} && exec {shlex.join(command)}"),
            pass_fds=(write_fd,),
            stderr=stderr,
        )
    os.close(write_fd)
    try:
        with os.fdopen(read_fd) as pipe:
            said = json.loads(await asyncio.to_thread(pipe.readline))
        ports = [int(said[name].rpartition(":")[2]) for name in ("http_address", "address")]
        yield RouterProcess(pid=process.pid, log=log, http_port=ports[0], grpc_port=ports[1])
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


@pytest.mark.parametrize("ulimit", ["-Sn", exhaustive("-n")], ids=["soft", "hard"])
async def test_health_and_streams_go_on_beside_silent_connections(ulimit: str, tmp_path: Path) -> None:
    worker = ScriptedWorker("w1", answers=[ANSWER], num_steps=2)
    async with AsyncExitStack() as stack:
        stack.enter_context(many_descriptors())
        router = await stack.enter_async_context(router_process(tmp_path, ulimit))
        await stack.enter_async_context(worker.joined(router.grpc_port))
        url = f"http://127.0.0.1:{router.http_port}"
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=20.0))
        answer = await stack.enter_async_context(
            client.stream("POST", "/v1/completions", json=ASKED, headers={"x-request-id": "r1"})
        )
        parts = answer.aiter_text()
        said = await anext(parts)
        session, began_bytes = worker.router_id, router.resident_bytes
        for _ in range(2):
            with ExitStack() as flood:
                for port in (router.http_port, router.grpc_port):
                    flood.enter_context(silent_connections(port))
                for _ in range(3):
                    async with httpx.AsyncClient(base_url=url, timeout=10.0) as other:
                        assert (await other.get("/ping")).status_code == 200
                assert router.num_descriptors < NUM_DESCRIPTORS - 50 or ulimit == "-Sn"
        worker.go_on("r1")
        said += "".join([part async for part in parts])
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks_of(said)) == TEXT
        assert worker.router_id == session
        assert router.resident_bytes - began_bytes < MAX_GROWTH_BYTES
    text = router.log.read_text()
    assert len(text) < MAX_LOG_BYTES
    assert "Traceback" not in text
    assert "connections: " in text


@pytest.mark.parametrize(
    "garbage", [b"\0\r\n\r\n", exhaustive(b"GET / HTTP/9\r\n\r\n")], ids=["bytes", "version"]
)
async def test_what_strangers_send_is_logged_in_moderation(garbage: bytes, tmp_path: Path) -> None:
    async with router_process(tmp_path, "-Sn") as router:
        for _ in range(NUM_SILENT):
            reader, writer = await asyncio.open_connection("127.0.0.1", router.http_port)
            writer.write(garbage)
            assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
            writer.close()
    text = router.log.read_text()
    assert len(text) < MAX_LOG_BYTES
    assert "more lines like this one were suppressed: Invalid HTTP request received." in text


async def test_a_router_with_too_few_descriptors_says_so(tmp_path: Path) -> None:
    command = f"ulimit -n 100 && exec {sys.executable} -m baton router {MODEL} --port 0 --grpc-port 0"
    process = await asyncio.create_subprocess_exec(*("bash", "-c", command), stderr=asyncio.subprocess.PIPE)
    try:
        _, said = await asyncio.wait_for(process.communicate(), 30)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    assert process.returncode == 2
    assert b"the limit of open files (ulimit -n) is 100; allowed: 256 or more" in said
