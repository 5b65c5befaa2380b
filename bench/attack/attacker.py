"""The attacking process: runs attacks in a seeded order and prints what became of each, one JSON line each.

It has a process of its own, at a lower priority than what it attacks, so that its work is not taken for the
routers'. Started by `bench.attack`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import time
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

from bench.attack.grammars import GRAMMARS
from bench.attack.strangers import STRANGERS
from bench.attack.targets import Attack, Target
from bench.attack.tenants import TENANTS
from bench.command_line import make_parser

ATTACKS: Final = (*STRANGERS, *TENANTS, *GRAMMARS)
NUM_AT_ONCE: Final = 2
NICENESS: Final = 10
PAUSE_S: Final = (0.2, 1.0)
"""Between two attacks of a row, so that quick ones are no flood."""


def in_random_order(attacks: Sequence[Attack], rng: Random) -> Iterator[Attack]:
    """Yield attacks without end: all of them in a random order, then in another one."""
    while True:
        yield from rng.sample(attacks, k=len(attacks))


async def attack_on(args: argparse.Namespace) -> None:
    rng = Random(args.seed)
    order = in_random_order([one for one in ATTACKS if not args.only or one.name in args.only], rng)
    until_s = time.monotonic() + args.seconds

    async def one_after_the_other() -> None:
        while time.monotonic() < until_s:
            attack, place = next(order), rng.randrange(len(args.http))
            target = Target(
                http_address=args.http[place],
                grpc_address=args.grpc[place],
                key=args.key if attack.has_key else "",
                rng=Random(rng.random()),
            )
            began_s = time.monotonic()
            outcome = await attack.attack(target)
            report = {
                "attack": attack.name,
                "began_s": began_s,
                "took_s": time.monotonic() - began_s,
                "ends": outcome.ends,
                "wrong": outcome.wrong,
            }
            print(json.dumps(report), flush=True)
            await asyncio.sleep(rng.uniform(*PAUSE_S))

    await asyncio.gather(*(one_after_the_other() for _ in range(1 if len(args.only) == 1 else NUM_AT_ONCE)))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--http", nargs="+", required=True, help="addresses of the routers")
    parser.add_argument("--grpc", nargs="+", required=True, help="the same routers' gRPC addresses")
    parser.add_argument("--key", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=())
    args = parser.parse_args()
    os.nice(NICENESS)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(attack_on(args))


if __name__ == "__main__":
    main()
