"""Servers under measurement by `bench.router_cost` and `bench.tracing_cost`, and what their streams cost."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from baton.config.engine_args import BUNDLED_MODEL
from baton_router.text.model_folder import read_model_folder
from baton_router.text.tokenization import Tokenizer
from bench.processes import ROOT, cpu_s, descendants, start_module, start_router
from bench.router_cost import stream_clients
from bench.router_cost.stream_clients import Ask

NUM_TOKENS = 65
MIN_REQUESTS = 64
WITHIN_S = 60.0
TEXT = "os.path.join joins one or more path segments intelligently, and returns the concatenation of them. "
CLIENTS: dict[str, tuple[str, Callable[[str], Ask]]] = {
    "gRPC": ("address", stream_clients.grpc_client),
    "HTTP": ("http_address", stream_clients.http_client),
}


@dataclass(frozen=True, slots=True)
class Server:
    pids: Sequence[int]
    """Its processes, the first one first; not those of its engine."""
    addresses: dict[str, str]

    def cpu_s(self) -> float:
        """Return the CPU seconds of its processes so far."""
        return sum(map(cpu_s, self.pids))

    def client(self, protocol: str) -> Ask:
        field, make_client = CLIENTS[protocol]
        return make_client(self.addresses[field])


@dataclass(frozen=True, slots=True)
class Cost:
    """Median CPU time of one protocol at one number of streams, in microseconds."""

    request_us: float
    token_us: float
    tokens_per_s: float
    tokens_per_event: float
    """Tokens that come for a stream while its router is behind go out in one event."""


@contextmanager
def running_router(*flags: str, profile: Path | None = None) -> Iterator[Server]:
    """A router and a worker that answers at once; `profile` is the file for the router's profiles."""
    module = ("bench.router_cost.profiled_router", str(profile)) if profile else ("baton", "router")
    named = ("--served-model-name", stream_clients.MODEL, "--session-timeout", str(WITHIN_S))
    router, addresses = start_router(*named, *flags, module=module)
    tokens = ",".join(map(str, Tokenizer(read_model_folder(Path(BUNDLED_MODEL))).encode(TEXT)))
    engine = start_module(
        "bench.router_cost.instant_engine", "--router", addresses["address"], "--tokens", tokens
    )
    try:
        yield Server((router.pid, *descendants(router.pid)), addresses)
    finally:
        for process in (engine, router):
            process.terminate()
            process.wait()


@contextmanager
def running_bare_server() -> Iterator[Server]:
    command = (sys.executable, "-m", "bench.router_cost.bare_server")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    try:
        yield Server((process.pid,), json.loads(process.stdout.readline()))
    finally:
        process.terminate()
        process.wait()


async def measure(server: Server, protocol: str, num_streams: int) -> Cost:
    ask = server.client(protocol)
    num_requests = max(MIN_REQUESTS, 2 * num_streams)

    num_events = 0

    async def spend(num_tokens: int, num_requests: int) -> float:
        """CPU seconds for each request."""
        nonlocal num_events
        before = server.cpu_s()
        num_received, num_events = await stream_clients.load(
            ask, num_streams=num_streams, num_requests=num_requests, num_tokens=num_tokens
        )
        assert num_received == num_requests * num_tokens, "a client did not get all its tokens"
        return (server.cpu_s() - before) / num_requests

    await spend(NUM_TOKENS, max(num_streams, MIN_REQUESTS // 4))
    request_s = await spend(1, num_requests)
    started = time.perf_counter()
    answer_s = await spend(NUM_TOKENS, num_requests)
    took_s = time.perf_counter() - started
    token_s = (answer_s - request_s) / (NUM_TOKENS - 1)
    num_tokens = num_requests * NUM_TOKENS
    return Cost(request_s * 1e6, token_s * 1e6, num_tokens / took_s, num_tokens / num_events)


async def wait_until_ready(server: Server) -> None:
    """Ask until the engine has joined."""
    ask = server.client("gRPC")
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                await ask(1)
            except Exception:
                await asyncio.sleep(0.1)
            else:
                return


def median_cost(costs: list[Cost]) -> Cost:
    columns = [[getattr(cost, name) for cost in costs] for name in Cost.__slots__]
    return Cost(*map(statistics.median, columns))
