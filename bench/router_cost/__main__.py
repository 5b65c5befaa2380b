"""CPU time that a router spends on a request and on a token, over gRPC and HTTP.

    python -m bench.router_cost --streams 1 64 512 --repeats 3
    python -m bench.router_cost --streams 64 512 --sglang FOLDER --vllm FOLDER
    python -m bench.router_cost --streams 64 512 --processes 1 2 4

A router process, a worker whose engine answers within a millisecond (`instant_engine`), and clients
that only read. The cost of a request is the router's CPU time for answers of one token; that of a token is
what each further token adds. The bare server of the same run sends as many events and does nothing else
(`bare_server`). `--profile` shows where the time of the router's loop goes.

In the same run, over HTTP, may be measured: SGLang's router in front of the bare server, which passes bytes
on and reads no tokens (`--sglang`, a virtual environment with `pip install sglang-router==0.3.2`), and the
API server of vLLM, whose engine is a process of its own with the bundled model (`--vllm`, the folder of
bench/peer/make_environment.sh), and the bare server on Granian instead of uvicorn (`--granian`, with
`pip install granian==2.8.9`).

`--processes` measures routers of so many processes in turns, each with so many times the streams, over HTTP,
which spreads its connections over them: the CPU time of all processes for a request and a token. Where it
does not grow, N processes on N cores serve N times as much.
"""

from __future__ import annotations

import asyncio
import os
import pstats
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.command_line import make_parser
from bench.router_cost import stream_clients
from bench.router_cost.peers import running_granian, running_sglang, running_vllm
from bench.router_cost.servers import (
    CLIENTS,
    MIN_REQUESTS,
    NUM_TOKENS,
    WITHIN_S,
    Cost,
    Server,
    measure,
    median_cost,
    running_bare_server,
    running_router,
    wait_until_ready,
)


async def compare(
    streams: list[int], repeats: int, peers: Mapping[str, Server], flags: Sequence[str]
) -> None:
    columns = ("protocol", "streams", "µs/request", "bare", "ratio", "µs/token", "bare", "ratio")
    print(("{:>11}" * 10).format(*columns, "tokens/s", "per event"))
    with running_router(*flags) as router, running_bare_server() as bare:
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
        for name, peer in peers.items():
            for num_streams in streams:
                theirs = [await measure(peer, "HTTP", num_streams) for _ in range(repeats)]
                floor = [await measure(bare, "HTTP", num_streams) for _ in range(repeats)]
                print(_row(name, num_streams, median_cost(theirs), median_cost(floor)), flush=True)


async def compare_processes(
    streams: list[int], repeats: int, counts: Sequence[int], flags: Sequence[str]
) -> None:
    print(("{:>11}" * 6).format("processes", "streams", "µs/request", "µs/token", "tokens/s", "per event"))
    with ExitStack() as stack:
        routers = [
            stack.enter_context(running_router(*flags, "--router-processes", str(count))) for count in counts
        ]
        for router in routers:
            await wait_until_ready(router)
        for num_streams in streams:
            costs = defaultdict[int, list[Cost]](list)
            for _ in range(repeats):
                for count, router in zip(counts, routers, strict=True):
                    costs[count].append(await measure(router, "HTTP", num_streams * count))
            for count, measured in costs.items():
                cost = median_cost(measured)
                figures = f"{cost.request_us:11.0f}{cost.token_us:11.1f}{cost.tokens_per_s:11.0f}"
                print(f"{count:11}{num_streams * count:11}{figures}{cost.tokens_per_event:11.1f}", flush=True)


def _row(protocol: str, num_streams: int, ours: Cost, bare: Cost) -> str:
    request = f"{ours.request_us:11.0f}{bare.request_us:11.0f}{ours.request_us / bare.request_us:11.1f}"
    token = f"{ours.token_us:11.1f}{bare.token_us:11.1f}{ours.token_us / bare.token_us:11.1f}"
    rate = f"{ours.tokens_per_s:11.0f}{ours.tokens_per_event:11.1f}"
    return f"{protocol:>11}{num_streams:11}{request}{token}{rate}"


def _slope(costs: dict[int, Cost]) -> str:
    """Return the cost that each further stream adds, between the fewest and the most."""
    fewest, most = min(costs), max(costs)
    num_more = max(1, most - fewest)
    request_ns, token_ns = (
        1e3 * (getattr(costs[most], name) - getattr(costs[fewest], name)) / num_more
        for name in ("request_us", "token_us")
    )
    return f"{'':11}each further stream: {request_ns:+.0f} ns per request, {token_ns:+.1f} ns per token"


async def show_profile(protocol: str, num_streams: int, num_lines: int, flags: Sequence[str]) -> None:
    num_requests = max(MIN_REQUESTS, 2 * num_streams)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "router.prof"
        with running_router(*flags, profile=path) as router:
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
    os.kill(server.pids[0], signal.SIGUSR1)
    yield
    os.kill(server.pids[0], signal.SIGUSR2)
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
    parser = make_parser(__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64, 512])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--profile", choices=tuple(CLIENTS), help="show the costs at the last of --streams")
    parser.add_argument("--sglang", type=Path, help="virtual environment with SGLang's router")
    parser.add_argument("--vllm", type=Path, help="folder of make_environment.sh")
    parser.add_argument("--granian", action="store_true", help="the bare server on Granian, too")
    parser.add_argument("--processes", type=int, nargs="+", help="routers of so many processes, over HTTP")
    parser.add_argument("--lines", type=int, default=15, help="functions that a profile shows")
    parser.add_argument("--stream-interval", default="1", help="the router's own: tokens in each event")
    args = parser.parse_args()
    flags = ("--stream-interval", args.stream_interval)
    if args.profile:
        asyncio.run(show_profile(args.profile, args.streams[-1], args.lines, flags))
    elif args.processes:
        asyncio.run(compare_processes(args.streams, args.repeats, args.processes, flags))
    else:
        with ExitStack() as stack:
            peers = {}
            if args.sglang:
                peers["sglang"] = stack.enter_context(running_sglang(args.sglang))
            if args.granian:
                peers["granian"] = stack.enter_context(running_granian())
            if args.vllm:
                peers["vllm"] = stack.enter_context(running_vllm(args.vllm))
            asyncio.run(compare(args.streams, args.repeats, peers, flags))


if __name__ == "__main__":
    main()
