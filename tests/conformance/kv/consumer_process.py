"""A consumer in a process of its own: takes a producer from standard input, then one command with each line.

`pull` runs a pull for all of the producer's blocks to its end; `begin` runs it until the first block is
there, and `finish` to its end.
"""

from __future__ import annotations

import json
import sys
from typing import Final

import torch

from baton_core.worker.worker_events import BlockPull, Pull
from baton_kv.auto import AutoConnector
from baton_kv.tcp_socket import TcpTimings
from tests.builders import make_source
from tests.conformance.kv.pairs import LARGE, MANY, PRODUCER, Worker
from tests.conformance.kv.producer_process import pattern

TIMINGS: Final = TcpTimings(heartbeat_s=0.2, lost_s=0.8, silence_s=1.5)


def main() -> None:
    producer = json.loads(sys.stdin.readline())
    connector = AutoConnector(LARGE, 1, timings=TIMINGS)
    worker = Worker(connector, connector.allocate(MANY), [])
    connector.connect(PRODUCER, bytes.fromhex(producer["description"]))
    tell(transport=connector.transport_of(PRODUCER))
    blocks = tuple(
        BlockPull(remote_block_id=block_id, local_block_id=block_id, checksum=checksum)
        for block_id, checksum in enumerate(producer["checksums"])
    )
    for line in sys.stdin:
        if line != "finish\n":
            worker.pool.zero_()
            connector.pull(Pull(pull_id=1, source=make_source(PRODUCER, epoch=1), blocks=blocks))
        if line == "begin\n":
            worker.run_until_written(0)
            tell()
            continue
        (outcome,) = worker.collect(1)
        is_right = all(torch.equal(worker.pool[i], pattern(1, i, LARGE)) for i in range(MANY))
        tell(error=outcome.error, failed=outcome.failed_block_ids, is_right=is_right)


def tell(**values: object) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
