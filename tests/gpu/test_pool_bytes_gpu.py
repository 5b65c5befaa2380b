"""The bytes of a pool in a GPU's memory, and a pull between two such pools."""

from __future__ import annotations

import pytest
import torch

from baton_kv.pool_bytes import DevicePool, open_pool
from baton_kv.tcp import TcpConnector
from tests.conformance.kv.pairs import PRODUCER, SMALL, Worker, make_pull, run_pull

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_a_pool_is_read_and_written_through_pinned_memory() -> None:
    rows = torch.randint(0, 256, (6, 4096), dtype=torch.uint8, device="cuda")
    pool = open_pool(rows)
    assert isinstance(pool, DevicePool)
    out = pool.make_buffer(2 * 4096).reshape(2, 4096)
    assert torch.from_numpy(out).is_pinned()
    pool.read([3, 1], slice(0, 4096), out)
    assert torch.equal(torch.from_numpy(out), rows[[3, 1]].cpu())
    pool.write([0, 5], slice(0, 4096), out)
    assert torch.equal(rows[[0, 5]], rows[[3, 1]])
    assert bytes(pool.block(5)) == out[1].tobytes()


def test_blocks_travel_from_one_pool_to_another() -> None:
    workers: list[Worker] = []
    for _ in range(2):
        pool = torch.randn((16, *SMALL.block_shape), device="cuda").bfloat16()
        connector = TcpConnector(SMALL, 1)
        connector.register(pool)
        workers.append(Worker(connector, pool, workers))
    producer, consumer = workers
    try:
        consumer.connector.connect(PRODUCER, producer.connector.describe())
        assert run_pull(consumer, make_pull(producer, {0: 5, 1: 6, 9: 0})).error == ""
        assert torch.equal(consumer.bytes[[0, 1, 9]], producer.bytes[[5, 6, 0]])
    finally:
        for worker in workers:
            worker.connector.close()
