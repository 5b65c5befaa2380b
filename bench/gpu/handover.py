"""Prefill and decode on one device for `bench.gpu`: a prompt's blocks handed from one pool to another."""

from __future__ import annotations

import time
from typing import Final

import torch

from baton_core.sessions.router_messages import KVSource
from baton_core.worker.worker_events import BlockPull, Pull, PullDone
from baton_engine.steps.runner import ModelRunner
from baton_kv.tcp import TcpConnector
from bench.gpu.measures import QWEN2_387M, TINY, Clock, Setup, Table
from bench.gpu.models import BLOCK_SIZE, make_plan, make_runner

PRODUCER: Final = "prefill"
EPOCH: Final = 1
DEADLINE_S: Final = 60.0
PROMPT: Final = 8192
NUM_DECODED: Final = 16


def handover(setup: Setup) -> list[Table]:
    """A prompt at P, its blocks to D, decoded there and, for comparison, at P."""
    shape, prompt = (TINY, 70) if setup.is_quick else (QWEN2_387M, PROMPT)
    max_len = prompt + NUM_DECODED
    clock = Clock(setup)
    producer = make_runner(setup, shape, 1, max_len)
    # The same weights, another pool: what two workers of one model have.
    consumer = ModelRunner(
        producer.model,
        producer._kernels,
        torch.zeros_like(producer.kv_pool),
        producer.spec,
        producer._sampler,
    )
    plan = make_plan(1, prompt, prompt)
    prefill_s = clock.host_seconds(lambda: producer.execute(plan))
    ((first,),) = producer.execute(plan).sampled
    num_blocks = -(-prompt // BLOCK_SIZE)
    block_ids = list(plan.slices[0].block_tables[0])
    outcome, pull_s = pull(producer, consumer, block_ids)
    if outcome.error:
        raise RuntimeError(f"the hand-over failed: {outcome.error}")
    is_equal = decode(consumer, prompt, first) == decode(producer, prompt, first)
    rows_in = torch.tensor(block_ids, device=setup.device)
    copied_s = clock.seconds(lambda: consumer.kv_pool.index_copy_(0, rows_in, producer.kv_pool[rows_in]))
    mib = num_blocks * producer.spec.block_bytes / 2**20
    columns = ("what", "ms", "MiB", "GB/s")
    rows = [
        ("prefill at P", prefill_s * 1e3, None, None),
        ("blocks from P's pool to D's over TCP", pull_s * 1e3, mib, mib * 2**20 / pull_s / 1e9),
        ("the same blocks copied on the device", copied_s * 1e3, mib, mib * 2**20 / copied_s / 1e9),
        ("the same tokens at D as at P", None, None, "yes" if is_equal else "NO"),
    ]
    return [Table(title=f"A prompt of {prompt} tokens handed over", columns=columns, rows=rows)]


def pull(producer: ModelRunner, consumer: ModelRunner, block_ids: list[int]) -> tuple[PullDone, float]:
    """Bring blocks over by the connector that GPU workers use, with checksums; both ends on this thread."""
    ends = [TcpConnector(runner.spec, EPOCH) for runner in (producer, consumer)]
    try:
        for end, runner in zip(ends, (producer, consumer), strict=True):
            end.register(runner.kv_pool)
        ends[1].connect(PRODUCER, ends[0].describe())
        start = time.perf_counter()
        checksums = ends[0].compute_checksums(block_ids)
        blocks = tuple(
            BlockPull(remote_block_id=block, local_block_id=block, checksum=checksum)
            for block, checksum in zip(block_ids, checksums, strict=True)
        )
        ends[1].pull(
            Pull(
                pull_id=1,
                source=KVSource(worker_id=PRODUCER, epoch=EPOCH, peer_address="", kv_description=b""),
                blocks=blocks,
            )
        )
        while True:
            ends[0].poll()
            if outcomes := ends[1].poll():
                return outcomes[0], time.perf_counter() - start
            if time.perf_counter() - start > DEADLINE_S:
                raise TimeoutError(f"no blocks within {DEADLINE_S} s")
            ends[1].wait(0.001)
    finally:
        for end in ends:
            end.close()


def decode(runner: ModelRunner, prompt: int, first: int) -> list[int]:
    """Greedy tokens after `first`, which follows the prompt."""
    tokens = [first]
    for place in range(NUM_DECODED - 1):
        ((token,),) = runner.execute(make_plan(1, 1, prompt + place + 1, (tokens[-1],))).sampled
        tokens.append(token)
    return tokens
