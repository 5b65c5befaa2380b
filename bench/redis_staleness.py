"""Measures how late routers learn of each other's load, and of workers' stored blocks, through a real Redis.

Two routers' shares and a worker's share on one loop, talking to a redis-server that this starts. Changes come
at random times, at `--rate` a second; each is timed until the call that informs the other router.

    python -m bench.redis_staleness
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from pathlib import Path
from statistics import quantiles

from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.load_reservation import LoadReservation
from baton_core.worker.worker_events import CacheChanged
from baton_router.core.router_events import PeerLoad, PrefixUpdate
from baton_router.redis.router_sharing import open_router_share
from baton_worker.redis.worker_sharing import open_worker_share
from bench.command_line import make_parser
from tests.builders import make_worker_info
from tests.redis_server import redis_server


class Delays:
    """Delays from each numbered change to the first update that has it."""

    def __init__(self) -> None:
        self._changed_at: dict[int, float] = {}
        self._in_ms: list[float] = []

    def change(self, number: int) -> None:
        self._changed_at[number] = time.perf_counter()

    def receive(self, number: int) -> None:
        """Receive an update with all changes up to `number`."""
        now = time.perf_counter()
        for known in [one for one in self._changed_at if one <= number]:
            self._in_ms.append(1e3 * (now - self._changed_at.pop(known)))

    def line(self, name: str) -> str:
        cuts = quantiles(self._in_ms, n=100, method="inclusive")
        values = f"p50 {cuts[49]:6.1f}  p90 {cuts[89]:6.1f}  p99 {cuts[98]:6.1f}  max {max(self._in_ms):6.1f}"
        return f"{name:<28} {values}  ms, {len(self._in_ms)} changes"


async def measure(rate: float, seconds: float, folder: Path) -> None:
    reserved, stored = Delays(), Delays()
    reservations = [LoadReservation("w1")]

    def on_update(update: PrefixUpdate | PeerLoad) -> None:
        if isinstance(update, PrefixUpdate):
            for block_hash in update.delta.stored:
                stored.receive(int.from_bytes(block_hash, "big"))
        elif update.reservations:
            reserved.receive(update.reservations[0].num_tokens)

    async with redis_server(folder) as redis:
        info = make_worker_info("w1")
        worker = open_worker_share(redis.settings(), info)
        working = asyncio.create_task(worker.run(lambda routers: None))
        sender = open_router_share(
            redis.settings(), "sender", 1, on_update=lambda update: None, reservations=lambda: reservations
        )
        receiver = open_router_share(
            redis.settings(), "receiver", 1, on_update=on_update, reservations=lambda: ()
        )
        sender.start("127.0.0.1:1")
        receiver.start("127.0.0.1:2")
        receiver.on_joined(info)
        await asyncio.sleep(1.0)
        draw, until = random.Random(0), time.perf_counter() + seconds
        number = 0
        while time.perf_counter() < until:
            number += 1
            reserved.change(number)
            reservations[0] = LoadReservation("w1", num_tokens=number)
            sender.on_load_changed()
            stored.change(number)
            delta = CacheDelta(stored=(number.to_bytes(16, "big"),), number=number)
            worker.on_changed(CacheChanged(delta=delta, events=()))
            await asyncio.sleep(draw.expovariate(rate))
        await asyncio.sleep(1.0)
        working.cancel()
        await asyncio.gather(working, sender.stop(), receiver.stop(), return_exceptions=True)
    print(f"{rate:g} changes a second for {seconds:g} s")
    print(reserved.line("reserved by another router"))
    print(stored.line("stored by a worker"))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rate", type=float, nargs="+", default=[5.0, 50.0, 500.0])
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    for rate in args.rate:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(measure(rate, args.seconds, Path(folder)))


if __name__ == "__main__":
    main()
