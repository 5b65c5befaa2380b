"""A puller in a process of its own: takes a holder from standard input, then one order with each line.

`pull` runs an order for all of the holder's blocks to its end; `begin` runs it until the first block is
there, and `finish` to its end.
"""

from __future__ import annotations

import json
import sys
from typing import Final

import torch

from baton_kv.auto import AutoConnector
from baton_kv.connector import BlockCopy, PullOrder
from baton_kv.tcp_socket import TcpTimings
from tests.conformance.kv.holder_process import pattern
from tests.conformance.kv.pairs import HOLDER, LARGE, MANY, Worker

TIMINGS: Final = TcpTimings(heartbeat_s=0.2, lost_s=0.8, silence_s=1.5)


def main() -> None:
    holder = json.loads(sys.stdin.readline())
    connector = AutoConnector(LARGE, 1, timings=TIMINGS)
    worker = Worker(connector, connector.allocate(MANY), [])
    connector.connect(HOLDER, bytes.fromhex(holder["description"]))
    tell(transport=connector.transport_of(HOLDER))
    copies = tuple(
        BlockCopy(remote_block_id=block_id, local_block_id=block_id, checksum=checksum)
        for block_id, checksum in enumerate(holder["checksums"])
    )
    for line in sys.stdin:
        if line != "finish\n":
            worker.pool.zero_()
            connector.pull(PullOrder(pull_id=1, source=HOLDER, epoch=1, copies=copies))
        if line == "begin\n":
            worker.run_until_written(0)
            tell()
            continue
        (outcome,) = worker.collect(1)
        is_right = all(torch.equal(worker.pool[i], pattern(1, i, LARGE)) for i in range(MANY))
        tell(error=outcome.error, failed=outcome.failed, is_right=is_right)


def tell(**values: object) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
