"""A holder in a process of its own: prints its description and checksums, then waits to be killed."""

from __future__ import annotations

import json
import signal
import sys

import torch

from baton_kv.shared_memory import SharedMemoryConnector
from tests.conformance.kv.pairs import SMALL

NUM_BLOCKS = 16


def main(epoch: int) -> None:
    connector = SharedMemoryConnector(SMALL, epoch)
    pool = connector.allocate(NUM_BLOCKS)
    for block_id in range(NUM_BLOCKS):
        pool[block_id] = pattern(epoch, block_id)
    checksums = connector.seal(range(NUM_BLOCKS))
    json.dump({"description": connector.describe().hex(), "checksums": checksums}, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()
    signal.pause()


def pattern(epoch: int, block_id: int) -> torch.Tensor:
    """What the holder of an epoch has in a block: `SMALL.block_shape` bf16."""
    generator = torch.Generator().manual_seed(1000 * epoch + block_id)
    return torch.randn(SMALL.block_shape, generator=generator).bfloat16()


if __name__ == "__main__":
    main(int(sys.argv[1]))
