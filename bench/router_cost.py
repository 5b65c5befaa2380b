"""CPU time that a router spends on a request and on a token, over gRPC and HTTP.

    python bench/router_cost.py --streams 1 64 512 --repeats 3

A router process, a worker whose engine answers within a millisecond (bench/instant_engine.py), and clients
that only read. The cost of a request is the router's CPU time for answers of one token; that of a token is
what each further token adds. The bare server of the same run sends as many events and does nothing else
(bench/bare_server.py). `--profile` shows where the time of the router's loop goes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pstats
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import stream_clients
from stream_clients import Ask

from baton.commands.cli_arguments import BUNDLED_MODEL
from baton_router.model_folder import read_model_folder
from baton_router.tokenization import Tokenizer

HERE = Path(__file__).parent
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
    pid: int
    addresses: dict[str, str]

    def cpu_s(self) -> float:
        """User and system time of the process so far, all threads, in steps of a nanosecond.

        Source: clock_getcpuclockid(3); CPUCLOCK_SCHED is 2.
        """
        return time.clock_gettime((~self.pid << 3) | 2)

    def client(self, protocol: str) -> Ask:
        field, make_client = CLIENTS[protocol]
        return make_client(self.addresses[field])


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one protocol at one number of streams, in microseconds of CPU time."""

    request_us: float
    token_us: float
    tokens_per_s: float


@contextmanager
def running_router(profile: Path | None = None, flags: tuple[str, ...] = ()) -> Iterator[Server]:
    read_fd, write_fd = os.pipe()
    start = [str(HERE / "profiled_router.py"), str(profile)] if profile else ["-m", "baton", "router"]
    ports = ["--port", "0", "--grpc-port", "0", "--report-fd", str(write_fd), "--log-level", "error"]
    router = subprocess.Popen([sys.executable, *start, BUNDLED_MODEL, *ports, *flags], pass_fds=(write_fd,))
    os.close(write_fd)
    with os.fdopen(read_fd) as pipe:
        addresses = json.loads(pipe.readline())
    tokens = ",".join(map(str, Tokenizer(read_model_folder(Path(BUNDLED_MODEL))).encode(TEXT)))
    command = [sys.executable, str(HERE / "instant_engine.py"), "--router", addresses["address"]]
    engine = subprocess.Popen([*command, "--tokens", tokens])
    try:
        yield Server(router.pid, addresses)
    finally:
        for process in (engine, router):
            process.terminate()
            process.wait()


@contextmanager
def running_bare_server() -> Iterator[Server]:
    process = subprocess.Popen([sys.executable, str(HERE / "bare_server.py")], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield Server(process.pid, json.loads(process.stdout.readline()))
    finally:
        process.terminate()
        process.wait()


async def measure(server: Server, protocol: str, num_streams: int) -> Cost:
    ask = server.client(protocol)
    num_requests = max(MIN_REQUESTS, 2 * num_streams)

    async def spend(num_tokens: int, num_requests: int) -> float:
        """CPU seconds for each request."""
        before = server.cpu_s()
        num_events = await stream_clients.load(
            ask, num_streams=num_streams, num_requests=num_requests, num_tokens=num_tokens
        )
        assert num_events >= num_requests * num_tokens, "a client did not get all its tokens"
        return (server.cpu_s() - before) / num_requests

    await spend(NUM_TOKENS, max(num_streams, MIN_REQUESTS // 4))
    request_s = await spend(1, num_requests)
    started = time.perf_counter()
    answer_s = await spend(NUM_TOKENS, num_requests)
    took_s = time.perf_counter() - started
    token_s = (answer_s - request_s) / (NUM_TOKENS - 1)
    return Cost(request_s * 1e6, token_s * 1e6, num_requests * NUM_TOKENS / took_s)


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


async def compare(streams: list[int], repeats: int) -> None:
    columns = ("protocol", "streams", "µs/request", "bare", "ratio", "µs/token", "bare", "ratio")
    print(("{:>11}" * 9).format(*columns, "tokens/s"))
    with running_router() as router, running_bare_server() as bare:
        await wait_until_ready(router)
        for protocol in CLIENTS:
            costs: dict[int, Cost] = {}
            for num_streams in streams:
                ours, floor = [], []
                for _ in range(repeats):
                    ours.append(await measure(router, protocol, num_streams))
                    floor.append(await measure(bare, protocol, num_streams))
                costs[num_streams] = median_cost(ours)
                print(_row(protocol, num_streams, costs[num_streams], median_cost(floor)), flush=True)
            print(_slope(costs), flush=True)


def median_cost(costs: list[Cost]) -> Cost:
    columns = [[getattr(cost, name) for cost in costs] for name in Cost.__slots__]
    return Cost(*map(statistics.median, columns))


def _row(protocol: str, num_streams: int, ours: Cost, bare: Cost) -> str:
    request = f"{ours.request_us:11.0f}{bare.request_us:11.0f}{ours.request_us / bare.request_us:11.1f}"
    token = f"{ours.token_us:11.1f}{bare.token_us:11.1f}{ours.token_us / bare.token_us:11.1f}"
    return f"{protocol:>11}{num_streams:11}{request}{token}{ours.tokens_per_s:11.0f}"


def _slope(costs: dict[int, Cost]) -> str:
    """What a stream beside the others adds, between the fewest and the most."""
    fewest, most = min(costs), max(costs)
    num_more = max(1, most - fewest)
    request_ns, token_ns = (
        1e3 * (getattr(costs[most], name) - getattr(costs[fewest], name)) / num_more
        for name in ("request_us", "token_us")
    )
    return f"{'':11}each further stream: {request_ns:+.0f} ns per request, {token_ns:+.1f} ns per token"


async def show_profile(protocol: str, num_streams: int, num_lines: int) -> None:
    num_requests = max(MIN_REQUESTS, 2 * num_streams)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "router.prof"
        with running_router(path) as router:
            await wait_until_ready(router)
            for num_tokens in (1, NUM_TOKENS):
                with _profiled(router, path):
                    await stream_clients.load(
                        router.client(protocol),
                        num_streams=num_streams,
                        num_requests=num_requests,
                        num_tokens=num_tokens,
                    )
                print(f"\n{num_requests} requests of {num_tokens} tokens, {protocol}, {num_streams} streams")
                _print_own_times(path, num_requests, num_lines)
                path.unlink()


@contextmanager
def _profiled(server: Server, path: Path) -> Iterator[None]:
    os.kill(server.pid, signal.SIGUSR1)
    yield
    os.kill(server.pid, signal.SIGUSR2)
    deadline = time.monotonic() + WITHIN_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no profile within {WITHIN_S:g} s")
        time.sleep(0.05)


def _print_own_times(path: Path, num_requests: int, num_lines: int) -> None:
    """The functions whose own time on the loop is longest; waiting for events is left out."""
    stats: dict[tuple[str, int, str], tuple[int, int, float, float, object]]
    stats = pstats.Stats(str(path)).stats  # type: ignore[attr-defined]  # undocumented, and stable since 1.5
    own = {where: (row[2], row[1]) for where, row in stats.items() if "select.epoll" not in where[2]}
    total_s = sum(own_s for own_s, _ in own.values())
    parts: dict[str, float] = defaultdict(float)
    for (file, _, _), (own_s, _) in own.items():
        parts[_part(file)] += own_s
    largest = sorted(parts.items(), key=lambda item: -item[1])[:8]
    print(", ".join(f"{part} {own_s / total_s:.0%}" for part, own_s in largest))
    print(f"{'share':>7}{'µs/request':>12}{'calls/request':>15}  function")
    for where, (own_s, num_calls) in sorted(own.items(), key=lambda item: -item[1][0])[:num_lines]:
        name = ":".join(part for part in (*Path(where[0]).parts[-2:], where[2]) if part != "~")
        calls = num_calls / num_requests
        print(f"{own_s / total_s:7.1%}{own_s / num_requests * 1e6:12.0f}{calls:15.1f}  {name}")


def _part(file: str) -> str:
    """The package that a file belongs to."""
    folders = Path(file).parts[:-1]
    ours = (folder for folder in folders if folder.startswith("baton_"))
    return next(ours, folders[-1] if folders else "built-in functions")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64, 512])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--profile", choices=tuple(CLIENTS), help="show the costs at the last of --streams")
    parser.add_argument("--lines", type=int, default=15, help="functions that a profile shows")
    args = parser.parse_args()
    if args.profile:
        asyncio.run(show_profile(args.profile, args.streams[-1], args.lines))
    else:
        asyncio.run(compare(args.streams, args.repeats))


if __name__ == "__main__":
    main()
