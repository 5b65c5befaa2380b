"""The pinging process: asks each router for /ping over a new connection, and prints how long that took.

It has a process of its own, so that nothing else delays what it measures. Started by `bench.attack`; a line
is the time of `time.monotonic` and the milliseconds, to the answer's last byte.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from typing import Final

from bench.command_line import make_parser

EVERY_S: Final = 0.1
WITHIN_S: Final = 20.0
"""An answer that takes longer counts as taking so long."""
ASK: Final = b"GET /ping HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


async def ping(host: str, port: int) -> bool:
    """Say whether the router answers with a status, be it 200 or 503."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(WITHIN_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(ASK)
                return (await reader.read()).startswith(b"HTTP/1.1 ")
            finally:
                writer.transport.abort()
    return False


async def report_ping(address: str) -> None:
    host, _, port = address.rpartition(":")
    began_s = time.monotonic()
    is_answered = await ping(host, int(port))
    took_s = time.monotonic() - began_s if is_answered else WITHIN_S
    print(f"{began_s} {1e3 * took_s}", flush=True)


async def ping_on(address: str) -> None:
    """Ask every tenth of a second, whether or not the last answer is there: a long stall counts as often."""
    async with asyncio.TaskGroup() as tasks:
        while os.getppid() != 1:
            tasks.create_task(report_ping(address))
            await asyncio.sleep(EVERY_S)


async def ping_all(addresses: list[str]) -> None:
    await asyncio.gather(*(ping_on(address) for address in addresses))


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("addresses", nargs="+", help="HTTP addresses of the routers")
    with suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(ping_all(parser.parse_args().addresses))
