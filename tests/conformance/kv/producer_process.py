"""A producer in a process of its own: prints description and checksums, then serves until it is killed."""

from __future__ import annotations

import json
import signal
import sys

import torch

from baton_core.kv_layout.kv_spec import KVSpec
from baton_kv.backends import CONNECTORS
from baton_kv.row_copies import copy_rows
from baton_kv.transfer_thread import TransferThread
from baton_kv.transport import Listen, Transport
from tests.conformance.kv.pairs import LARGE, MANY, SMALL

NUM_BLOCKS = {SMALL: 16, LARGE: MANY}


def main(transport: str, epoch: int, host: str, spec: KVSpec) -> None:
    connector = CONNECTORS[Transport(transport)](spec, epoch, Listen(host=host), copy_rows)
    pool = connector.allocate(NUM_BLOCKS[spec])
    for block_id in range(len(pool)):
        pool[block_id] = pattern(epoch, block_id, spec)
    checksums = connector.compute_checksums(range(len(pool)))
    thread = TransferThread(connector, lambda results: None)
    thread.start()
    json.dump({"description": connector.describe().hex(), "checksums": checksums}, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()
    signal.pause()


def pattern(epoch: int, block_id: int, spec: KVSpec = SMALL) -> torch.Tensor:
    """Return the contents of a block of an epoch's producer, of shape `spec.block_shape`."""
    generator = torch.Generator().manual_seed(1000 * epoch + block_id)
    return torch.randn(spec.block_shape, generator=generator).to(getattr(torch, spec.dtype))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], LARGE if sys.argv[4] == "large" else SMALL)
