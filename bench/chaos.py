"""A cluster under load whose processes are killed, frozen and started again: is every stream right?

Two routers, two prefill and two decode workers and a Redis, batch-invariant in float32. Hundreds of streams
of all kinds run all the time; each has to equal, token by token, what the same request gave before the faults
began. A part is killed (`kill -9`, started again after up to 3 s) or frozen (`SIGSTOP`, for up to 4 s), of
parts that can stand in for each other one at a time. Clients of a router that dies go on at the other one
with their resume tokens.

Then the load goes on without faults for some minutes, in whose course the memory of each part is told.

    python -m bench.chaos [--minutes 10] [--calm-minutes 3] [--clients 200] [--seed 0]
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

import grpc

from baton_proto.v1 import baton_pb2 as pb
from baton_proto.v1.baton_pb2_grpc import BatonStub
from bench.chaos_clients import Clients, Tally, make_requests
from bench.chaos_processes import Cluster, Part, freeze, kill, make_cluster

MODEL: Final = str(Path(__file__).parents[1] / "lib" / "baton" / "bundled")
NUM_REQUESTS: Final = 64
READY_WITHIN_S: Final = 120.0
RECOVERS_S: Final = 8.0
"""After a fault no other part of the same kind has one for so long."""
PAUSE_S: Final = (1.0, 4.0)
FROZEN_S: Final = (0.2, 4.0)
SETTLES_S: Final = 60.0
DOWN_S: Final = (0.0, 3.0)
QUARTERS: Final = 4


async def workers_of(address: str) -> Sequence[pb.ModelInfo.Worker]:
    """What a router says of its workers; nothing while it does not answer."""
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            info = await BatonStub(channel).GetModelInfo(pb.GetModelInfoRequest(), timeout=2.0)
        except grpc.aio.AioRpcError:
            return ()
        return list(info.workers)


async def wait_until_idle(cluster: Cluster) -> None:
    """Wait until every router has every worker, and none has a request or lacks a block.

    Raises:
        TimeoutError: one does not come to that; the message says what was seen last.
    """
    deadline_s = time.monotonic() + READY_WITHIN_S
    while True:
        seen = [await workers_of(address) for address in cluster.addresses]
        if all(
            len(workers) == len(cluster.workers)
            and all(
                (w.num_running, w.num_waiting, w.num_available_blocks) == (0, 0, w.num_blocks)
                for w in workers
            )
            for workers in seen
        ):
            return
        if time.monotonic() > deadline_s:
            raise TimeoutError(
                f"not every worker is idle with all its blocks within {READY_WITHIN_S:g} s: {seen}"
            )
        await asyncio.sleep(0.2)


async def disturb(cluster: Cluster, rng: Random, until_s: float) -> None:
    """Kill and freeze parts until that time; then wait until all go on."""
    last_s: dict[str, float] = {}
    faults: set[asyncio.Task[None]] = set()

    async def fault(part: Part) -> None:
        if rng.random() < 0.5:
            await kill(part, rng.uniform(*DOWN_S))
        else:
            await freeze(part, rng.uniform(*FROZEN_S))
        last_s[part.kind] = time.monotonic()

    while time.monotonic() < until_s:
        await asyncio.sleep(rng.uniform(*PAUSE_S))
        part = rng.choice(cluster.parts)
        is_steady = last_s.get(part.kind, 0.0) + RECOVERS_S < time.monotonic()
        if is_steady and not any(one.is_disturbed for one in cluster.parts if one.kind == part.kind):
            task = asyncio.create_task(fault(part))
            faults.add(task)
            task.add_done_callback(faults.discard)
    await asyncio.gather(*faults)


@dataclass(frozen=True, slots=True)
class Report:
    tally: Tally
    memory: list[dict[str, float]]
    """MiB of each part a while after the last fault, and at each quarter of the calm; all clients ask."""


async def run(cluster: Cluster, minutes: float, calm_minutes: float, num_clients: int, seed: int) -> Report:
    for part in cluster.parts:
        part.start()
    watching = asyncio.create_task(cluster.watch())
    await wait_until_idle(cluster)

    def start_number(place: int) -> int | None:
        router = cluster.routers[place]
        return router.start_number if router.is_running else None

    clients = Clients(cluster.addresses, make_requests(NUM_REQUESTS, seed), start_number)
    await clients.learn()
    is_over = asyncio.Event()
    asking = [asyncio.create_task(clients.ask_on(is_over)) for _ in range(num_clients)]
    await disturb(cluster, Random(seed), time.monotonic() + 60 * minutes)
    await asyncio.sleep(SETTLES_S)
    memory = [{part.name: part.memory_mib() for part in cluster.parts}]
    for _ in range(QUARTERS):
        await asyncio.sleep(60 * calm_minutes / QUARTERS)
        memory.append({part.name: part.memory_mib() for part in cluster.parts})
    is_over.set()
    await asyncio.gather(*asking)
    await wait_until_idle(cluster)
    if watching.done():
        watching.result()
    watching.cancel()
    await clients.close()
    return Report(clients.tally, memory)


def print_report(cluster: Cluster, report: Report) -> bool:
    """Print what happened; whether all is well."""
    tally = report.tally
    print(f"requests: {tally.num_right + len(tally.wrong) + len(tally.lost)}; tokens: {tally.num_tokens}")
    print(f"equal to the undisturbed stream: {tally.num_right}")
    print(f"not equal: {len(tally.wrong)}; lost: {len(tally.lost)}")
    print(f"went on at another router: {tally.num_reconnected}; longest request: {tally.longest_s:.1f} s")
    print(f"refused before they began, and asked again: {tally.num_refused}")
    for reason, count in tally.refusals.most_common(5):
        print(f"    {count} x {reason}")
    quarters = " | ".join(f"{number} of {QUARTERS}" for number in range(1, QUARTERS + 1))
    print(f"| part | killed | frozen | MiB after the faults | {quarters} |")
    print("|---" * (4 + QUARTERS) + "|")
    for part in cluster.parts:
        sizes = " | ".join(f"{sample[part.name]:.0f}" for sample in report.memory)
        print(f"| {part.name} | {part.num_kills} | {part.num_freezes} | {sizes} |")
    for line in (tally.wrong + tally.lost)[:10]:
        print(line[:2000], file=sys.stderr)
    return not tally.wrong and not tally.lost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument(
        "--calm-minutes",
        type=float,
        default=3.0,
        help="of load without faults, in which memory is told five times",
    )
    parser.add_argument("--clients", type=int, default=200, help="streams at a time")
    parser.add_argument("--seed", type=int, default=0, help="of the faults and the requests")
    parser.add_argument(
        "--logs", type=Path, help="folder for the logs of all parts; default: a temporary one"
    )
    args = parser.parse_args()
    redis_server = shutil.which("redis-server")
    if redis_server is None:
        parser.error("redis-server is not installed")
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.logs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        cluster = make_cluster(folder, MODEL, redis_server)
        try:
            running = run(cluster, args.minutes, args.calm_minutes, args.clients, args.seed)
            report = asyncio.run(running)
        finally:
            cluster.stop()
        return 0 if print_report(cluster, report) else 1


if __name__ == "__main__":
    sys.exit(main())
