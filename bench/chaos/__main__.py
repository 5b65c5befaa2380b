"""A cluster under load whose processes are killed, frozen and started again: is every stream right?

Two routers, two prefill and two decode workers and a Redis, batch-invariant in float32. Hundreds of streams
of all kinds run all the time; each has to equal, token by token, what the same request gave before the faults
began. A part is killed (`kill -9`, started again after up to 3 s) or frozen (`SIGSTOP`, for up to 4 s), of
parts that can stand in for each other one at a time. Clients of a router that dies resume at the other one
with their resume tokens.

Then the load continues without faults for some minutes, in which the memory of each part is sampled.

    python -m bench.chaos [--minutes 10] [--calm-minutes 3] [--clients 200] [--seed 0]
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from bench.chaos.clients import NUM_REQUESTS, Clients, Tally, make_requests
from bench.chaos.cluster import Cluster, Part, freeze, kill, running_cluster, wait_until_idle
from bench.command_line import make_parser

RECOVERS_S: Final = 8.0
"""After a fault no other part of the same kind has one for so long."""
PAUSE_S: Final = (1.0, 4.0)
FROZEN_S: Final = (0.2, 4.0)
SETTLES_S: Final = 60.0
DOWN_S: Final = (0.0, 3.0)
QUARTERS: Final = 4


async def disturb(cluster: Cluster, rng: Random, until_s: float) -> None:
    """Kill and freeze parts until that time; then wait until all run."""
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
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument(
        "--calm-minutes",
        type=float,
        default=3.0,
        help="minutes of load without faults, in which memory is sampled five times",
    )
    parser.add_argument("--clients", type=int, default=200, help="streams at a time")
    parser.add_argument("--seed", type=int, default=0, help="seed of the faults and the requests")
    parser.add_argument(
        "--logs", type=Path, help="folder for the logs of all parts; default: a temporary one"
    )
    parser.add_argument("--speculative-config", help="of the decode workers; default: they do not draft")
    args = parser.parse_args()
    drafting = ("--speculative-config", args.speculative_config) if args.speculative_config else ()
    with running_cluster(args.logs, decode_flags=drafting) as cluster:
        report = asyncio.run(run(cluster, args.minutes, args.calm_minutes, args.clients, args.seed))
    return 0 if print_report(cluster, report) else 1


if __name__ == "__main__":
    sys.exit(main())
