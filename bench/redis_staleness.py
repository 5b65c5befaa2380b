"""How long a router does not know what another one gave, and what a worker stored: through a real Redis.

Two routers' shares and a worker's share on one loop, talking to a redis-server that this starts. Changes come
at random times, at `--rate` a second; each is timed from the change to the call that tells the other router.

    python -m bench.redis_staleness
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from pathlib import Path
from statistics import quantiles

from baton_core.routing.charge import Charge
from baton_core.routing.router_events import LocalityTold, OthersGave
from baton_core.sessions.router_messages import CacheDelta
from baton_core.worker.worker_events import CacheChanged
from baton_service.shared_state.shares import open_router_share, open_worker_share
from tests.builders import make_worker_info
from tests.redis_server import redis_server


class Delays:
    """From each numbered change to the first news that has it."""

    def __init__(self) -> None:
        self._changed_at: dict[int, float] = {}
        self._in_ms: list[float] = []

    def change(self, number: int) -> None:
        self._changed_at[number] = time.perf_counter()

    def hear(self, number: int) -> None:
        """Take news that contain all changes up to `number`."""
        now = time.perf_counter()
        for known in [one for one in self._changed_at if one <= number]:
            self._in_ms.append(1e3 * (now - self._changed_at.pop(known)))

    def line(self, name: str) -> str:
        cuts = quantiles(self._in_ms, n=100, method="inclusive")
        values = f"p50 {cuts[49]:6.1f}  p90 {cuts[89]:6.1f}  p99 {cuts[98]:6.1f}  max {max(self._in_ms):6.1f}"
        return f"{name:<28} {values}  ms, {len(self._in_ms)} changes"


async def measure(rate: float, seconds: float, folder: Path) -> None:
    given, stored = Delays(), Delays()
    ledger = [Charge("w1")]

    def hear_router(told: LocalityTold | OthersGave) -> None:
        if isinstance(told, LocalityTold):
            for block_hash in told.delta.stored:
                stored.hear(int.from_bytes(block_hash, "big"))
        elif told.charges:
            given.hear(told.charges[0].num_tokens)

    async with redis_server(folder) as redis:
        info = make_worker_info("w1")
        worker = open_worker_share(redis.settings(), info)
        working = asyncio.create_task(worker.run(lambda routers: None))
        giver = open_router_share(
            redis.settings(), "giver", 1, tell=lambda told: None, charges=lambda: ledger
        )
        hearer = open_router_share(redis.settings(), "hearer", 1, tell=hear_router, charges=lambda: ())
        giver.start("127.0.0.1:1")
        hearer.start("127.0.0.1:2")
        hearer.on_joined(info)
        await asyncio.sleep(1.0)
        draw, until = random.Random(0), time.perf_counter() + seconds
        number = 0
        while time.perf_counter() < until:
            number += 1
            given.change(number)
            ledger[0] = Charge("w1", num_tokens=number)
            giver.on_charged()
            stored.change(number)
            delta = CacheDelta(stored=(number.to_bytes(16, "big"),), number=number)
            worker.on_changed(CacheChanged(delta=delta, events=()))
            await asyncio.sleep(draw.expovariate(rate))
        await asyncio.sleep(1.0)
        working.cancel()
        await asyncio.gather(working, giver.stop(), hearer.stop(), return_exceptions=True)
    print(f"{rate:g} changes a second for {seconds:g} s")
    print(given.line("given by another router"))
    print(stored.line("stored by a worker"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rate", type=float, nargs="+", default=[5.0, 50.0, 500.0])
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    for rate in args.rate:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(measure(rate, args.seconds, Path(folder)))


if __name__ == "__main__":
    main()
