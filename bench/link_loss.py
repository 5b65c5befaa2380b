"""Takes links between the parts of a cluster down and up again, while streams run all the time.

A router, a prefill and a decode worker have namespaces of their own, joined pairwise by virtual links. One
link after the other is taken down and up again. The table shows what clients saw, and how long after the link
was back a new request ended that both workers had served. Every stream has to equal that of the same request
without a fault. As root, with iproute2:

    python -m bench.link_loss [--outages 0.5 5]
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from bench.command_line import make_parser

ROUTER, PREFILL, DECODE = (f"baton-{name}-{os.getpid()}" for name in ("router", "prefill", "decode"))
LINKS: Final = {
    "client": ("", ROUTER, 1),
    "router-prefill": (ROUTER, PREFILL, 2),
    "router-decode": (ROUTER, DECODE, 3),
    "prefill-decode": (PREFILL, DECODE, 4),
}
"""Ends, and the third number of the addresses 10.214.N.1 and .2."""
ANY: Final = "0.0.0.0"  # noqa: S104 (of a namespace that only this program reaches)
GRPC_PORT: Final = 8100
NUM_CLIENTS: Final = 4
PROMPT_TOKENS: Final = 300
MAX_TOKENS: Final = 100
WITHIN_S: Final = 90.0


def ip(*arguments: str) -> None:
    subprocess.run(("ip", *arguments), check=True, capture_output=True, text=True)


def within(namespace: str) -> tuple[str, ...]:
    return ("-n", namespace) if namespace else ()


def set_link(name: str, state: str) -> None:
    """Set a link `up` or `down`, at its first end."""
    ip(*within(LINKS[name][0]), "link", "set", f"bt{LINKS[name][2]}", state)


@contextmanager
def network() -> Iterator[None]:
    with ExitStack() as exits:
        for namespace in (ROUTER, PREFILL, DECODE):
            ip("netns", "add", namespace)
            exits.callback(ip, "netns", "del", namespace)
            ip("-n", namespace, "link", "set", "lo", "up")
        for one, other, number in LINKS.values():
            device = f"bt{number}"
            ip(*within(one), "link", "add", device, "type", "veth", "peer", device, "netns", other)
            for end, namespace in enumerate((one, other), start=1):
                ip(*within(namespace), "addr", "add", f"10.214.{number}.{end}/24", "dev", device)
                ip(*within(namespace), "link", "set", device, "up")
        yield


@contextmanager
def processes(folder: Path) -> Iterator[None]:
    """A router and two workers, each in its namespace, that log to `folder`."""
    shared = ("--dtype", "float32", "--kv-cache-memory-bytes", str(2**26))
    peer = ("--peer-address", f"tcp://{ANY}:0", "--advertise-host")
    commands = {
        ROUTER: ("router", "--host", ANY, "--grpc-port", str(GRPC_PORT), "--split", "always"),
        PREFILL: ("prefill-worker", *shared, "--router", f"10.214.2.1:{GRPC_PORT}", *peer, "10.214.4.1"),
        DECODE: ("decode-worker", *shared, "--router", f"10.214.3.1:{GRPC_PORT}", *peer, "10.214.4.2"),
    }
    with ExitStack() as exits:
        for namespace, command in commands.items():
            log = exits.enter_context((folder / command[0]).open("wb"))
            inside = ("ip", "netns", "exec", namespace, sys.executable, "-m", "baton", *command)
            process = subprocess.Popen(inside, stderr=log)
            exits.callback(process.wait)
            exits.callback(process.kill)
        yield


@dataclass(slots=True)
class Seen:
    """Observations of clients since the load began."""

    answers: dict[int, list[int]] = field(default_factory=dict)
    """Tokens by the number of their request."""
    errors: list[str] = field(default_factory=list)
    longest_gap_s: float = 0.0
    split_ends_s: list[float] = field(default_factory=list)
    """Times at which requests ended that two workers had served."""


def make_request(number: int) -> pb.GenerateRequest:
    params = pb.SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
    ids = [4 + (number * 7919 + position * 31) % 490 for position in range(PROMPT_TOKENS)]
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids), sampling_params=params)


async def ask(stub: Any, number: int, seen: Seen) -> None:
    """One stream to its end."""
    tokens: list[int] = []
    last_s = time.monotonic()
    try:
        async for event in stub.Generate(make_request(number), timeout=WITHIN_S):
            now_s = time.monotonic()
            seen.longest_gap_s = max(seen.longest_gap_s, now_s - last_s)
            last_s = now_s
            tokens += event.tokens.token_ids
            if event.finished.timings.transferred_bytes:
                seen.split_ends_s.append(now_s)
        seen.answers[number] = tokens
    except grpc.aio.AioRpcError as error:
        seen.errors.append(f"{error.code().name}: {error.details()}")
        await asyncio.sleep(0.1)


async def ask_on(stub: Any, number: int, seen: Seen, is_over: asyncio.Event) -> None:
    """Ask one request after the other until it is over."""
    while not is_over.is_set():
        await ask(stub, number, seen)
        number += NUM_CLIENTS


async def try_outage(stub: Any, link: str, outage_s: float, base: int) -> tuple[Seen, float]:
    """Take the link down and up under load; returns observations and the seconds until a split request."""
    seen, is_over = Seen(), asyncio.Event()
    clients = [asyncio.create_task(ask_on(stub, base + n, seen, is_over)) for n in range(NUM_CLIENTS)]
    await asyncio.sleep(3.0)
    set_link(link, "down")
    await asyncio.sleep(outage_s)
    set_link(link, "up")
    up_s = time.monotonic()
    number, probe = base + 5_000, Seen()
    while not probe.split_ends_s:
        if time.monotonic() > up_s + WITHIN_S:
            raise TimeoutError(f"no request was split within {WITHIN_S:g} s of {link}'s return")
        await ask(stub, number, probe)
        number += 1
    recovered_s = probe.split_ends_s[0] - up_s
    is_over.set()
    await asyncio.gather(*clients)
    undisturbed = Seen()
    for number in seen.answers:
        await ask(stub, number, undisturbed)
    assert undisturbed.answers == seen.answers, "a stream has other tokens than without the fault"
    return seen, recovered_s


async def run(outages_s: Sequence[float]) -> None:
    async with grpc.aio.insecure_channel(f"10.214.1.2:{GRPC_PORT}") as channel:
        stub, warm = BatonStub(channel), Seen()
        await asyncio.wait_for(channel.channel_ready(), WITHIN_S)
        while not warm.split_ends_s:
            await ask(stub, 0, warm)
        print("| link | down | requests | ended in an error | longest pause | split again after |")
        print("|---|---|---|---|---|---|")
        base = 0
        for link in list(LINKS)[1:]:
            for outage_s in outages_s:
                base += 10_000
                seen, recovered_s = await try_outage(stub, link, outage_s, base)
                asked = len(seen.answers) + len(seen.errors)
                print(
                    f"| {link} | {outage_s:g} s | {asked} | {len(seen.errors)} | {seen.longest_gap_s:.1f} s "
                    f"| {recovered_s:.1f} s |",
                    flush=True,
                )
                for error in sorted(set(seen.errors)):
                    print(f"  {error}", file=sys.stderr)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--outages", type=float, nargs="+", default=[0.5, 5.0], help="seconds that a link is down"
    )
    outages_s = parser.parse_args().outages
    with tempfile.TemporaryDirectory() as folder, network(), processes(Path(folder)):
        asyncio.run(run(outages_s))


if __name__ == "__main__":
    main()
