"""A cluster under attack by strangers and by a tenant: do others notice?

Two routers, two prefill and two decode workers and a Redis, batch-invariant in float32, at the usual limit of
1,024 descriptors. Ordinary clients stream over gRPC and HTTP all the time; each stream has to equal, token by
token, what the same request gave before the attacks began. Attackers run in a seeded order in a process of
their own, and /ping is asked over new connections from another one.

It ends with status 1 if a stream differs or is lost, if p99 of /ping is 100 ms or more, if the memory of a
part grows beyond noise in the last ten minutes, if something is left open, or if an attacker got an answer
that no server may give.

    python -m bench.attack [--minutes 15] [--seed 0] [--only ATTACK ...] [--list]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from baton_service.router_access import RouterAccess
from bench.attack.attacker import ATTACKS
from bench.attack.observations import Held, Sample, held_by, log_bytes, log_faults, sample_memory
from bench.attack.ordinary_http import HttpClients
from bench.attack.verdict import SPARE_CONNECTIONS, SPARE_DESCRIPTORS, AttackSum, Pings, Report, print_report
from bench.chaos.clients import NUM_REQUESTS, Clients, make_requests
from bench.chaos.cluster import Cluster, running_cluster, wait_until_idle
from bench.command_line import make_parser

SOFT_DESCRIPTORS: Final = 1024
ORDINARY_KEY: Final = "ordinary"
TENANT_KEY: Final = "tenant"
ROUTER_FLAGS: Final = ("--trust-request-chat-template", "--queue-timeout", "300")
"""Tenants bring templates, and get their large requests done on two cores."""
CALM_S: Final = 15.0
CLOSED_WITHIN_S: Final = 100.0
"""The idle timeouts of connections are shorter."""


@asynccontextmanager
async def running(module: str, *words: str) -> AsyncIterator[Process]:
    """Run a Python module until the block is left; its output is a pipe."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *words, stdin=asyncio.subprocess.DEVNULL, stdout=PIPE, limit=2**24
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def read_pings(process: Process, pings: list[tuple[float, float]]) -> None:
    assert process.stdout is not None
    async for line in process.stdout:
        at_s, took_ms = line.split()
        pings.append((float(at_s), float(took_ms)))


async def read_attacks(process: Process, attacks: dict[str, AttackSum]) -> None:
    """Read what attacks report until the last is over.

    Raises:
        RuntimeError: the attacker failed.
    """
    assert process.stdout is not None
    async for line in process.stdout:
        report = json.loads(line)
        print(f"{report['attack']}: {report['took_s']:.1f} s, {report['ends']}", file=sys.stderr, flush=True)
        attack = attacks.setdefault(report["attack"], AttackSum())
        attack.times_s.append((report["began_s"], report["began_s"] + report["took_s"]))
        attack.ends.update(report["ends"])
        attack.wrong += report["wrong"]
    if await process.wait():
        raise RuntimeError(f"the attacker ended with status {process.returncode}")


async def until_closed(cluster: Cluster, before: dict[str, Held]) -> dict[str, Held]:
    """Return what parts hold once that is no more than before, or after the longest that this may take."""
    deadline_s = time.monotonic() + CLOSED_WITHIN_S
    while True:
        after = held_by(cluster)
        is_closed = all(
            after[name].num_connections <= held.num_connections + SPARE_CONNECTIONS
            and after[name].num_descriptors <= held.num_descriptors + SPARE_DESCRIPTORS
            for name, held in before.items()
        )
        if is_closed or time.monotonic() > deadline_s:
            return after
        await asyncio.sleep(1.0)


async def run(cluster: Cluster, args: argparse.Namespace) -> Report:
    access = RouterAccess(key=ORDINARY_KEY)
    await wait_until_idle(cluster, access)
    clients = Clients(cluster.addresses, make_requests(NUM_REQUESTS, args.seed), lambda _: 0, access)
    http_clients = HttpClients(cluster.http_addresses, ORDINARY_KEY, args.seed)
    await clients.learn()
    await http_clients.learn()
    await wait_until_idle(cluster, access)
    before, is_over = held_by(cluster), asyncio.Event()
    pings: list[tuple[float, float]] = []
    samples: list[Sample] = []
    attacks: dict[str, AttackSum] = {}
    attacked = ("--http", *cluster.http_addresses, "--grpc", *cluster.addresses, "--key", TENANT_KEY)
    chosen = ("--seconds", str(60 * args.minutes), "--seed", str(args.seed), "--only", *args.only)
    async with (
        running("bench.attack.pings", *cluster.http_addresses) as pinging,
        asyncio.TaskGroup() as tasks,
    ):
        watching = tasks.create_task(cluster.watch())
        reading = tasks.create_task(read_pings(pinging, pings))
        asking = [tasks.create_task(clients.ask_on(is_over)) for _ in range(args.clients)]
        asking += [tasks.create_task(http_clients.ask_on(is_over)) for _ in range(args.clients)]
        await asyncio.sleep(CALM_S)
        sampling = tasks.create_task(sample_memory(cluster, samples))
        began_s = time.monotonic()
        async with running("bench.attack.attacker", *attacked, *chosen) as attacker:
            await read_attacks(attacker, attacks)
        ended_s = time.monotonic()
        is_over.set()
        await asyncio.wait(asking)
        for task in (watching, reading, sampling):
            task.cancel()
    await clients.close()
    try:
        not_idle = ""
        await wait_until_idle(cluster, access)
    except TimeoutError as error:
        not_idle = str(error)
    return Report(
        tallies={"gRPC": clients.tally, "HTTP": http_clients.tally},
        pings=Pings(
            [ping for ping in pings if ping[0] < began_s],
            [ping for ping in pings if began_s <= ping[0] < ended_s],
        ),
        samples=samples,
        held_before=before,
        held_after=await until_closed(cluster, before),
        log_bytes=log_bytes(cluster),
        num_tracebacks=log_faults(cluster),
        attacks=attacks,
        not_idle=not_idle,
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the attacks, their order and the requests"
    )
    parser.add_argument("--clients", type=int, default=8, help="ordinary streams at a time, of each protocol")
    names = [one.name for one in ATTACKS]
    parser.add_argument("--only", nargs="+", choices=names, default=[], metavar="ATTACK", help="default: all")
    parser.add_argument("--list", action="store_true", help="say what attacks there are, and end")
    parser.add_argument(
        "--logs", type=Path, help="folder for the logs of all parts; default: a temporary one"
    )
    args = parser.parse_args(argv)
    if args.list:
        for one in ATTACKS:
            print(f"{one.name:16} {'tenant  ' if one.has_key else 'stranger'} {one.what}")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the cluster, too
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT_DESCRIPTORS, hard))
    report = None
    with running_cluster(args.logs, (ORDINARY_KEY, TENANT_KEY), ROUTER_FLAGS) as cluster:
        try:
            report = asyncio.run(run(cluster, args))
        except* RuntimeError as ended:
            print("\n".join(f"FAULT: {error}" for error in ended.exceptions))
    return 0 if report is not None and print_report(report) else 1


if __name__ == "__main__":
    sys.exit(main())
