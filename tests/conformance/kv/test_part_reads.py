"""Every backend reads those parts of a peer's blocks that a plan names, and nothing beside them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from baton_core.errors import IncompatibleWorkerError
from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.ranks.rank_layout import ParallelSizes
from baton_core.ranks.transfer_plan import BlockPart, block_parts, plan_reads
from baton_kv.part_reads import PartRead
from tests.conformance.kv.pairs import LARGE, SMALL, Site, Worker, make_pull, open_site

ONE, TWO, FOUR = ParallelSizes(), ParallelSizes(tensor=2), ParallelSizes(tensor=4)
STAGES = ParallelSizes(pipeline=2)
BLOCKS = {4: 1, 5: 2, 9: 0}
"""Local blocks by number, with the remote ones that they become."""


def own_part(pool: torch.Tensor, part: BlockPart) -> torch.Tensor:
    """The part of a pool of all layers and heads that a rank has."""
    own = pool[:, part.layers.start : part.layers.stop, :, part.heads.start : part.heads.stop]
    return own.contiguous()


def producers_of(site: Site, spec: KVSpec, sizes: ParallelSizes) -> tuple[torch.Tensor, list[Worker]]:
    """Random blocks, and a worker for each rank with its part of them."""
    whole = torch.randn((16, *spec.block_shape), generator=site.rng).to(getattr(torch, spec.dtype))
    workers = []
    for part in block_parts(spec, sizes):
        workers.append(site.worker(part.spec(spec)))
        workers[-1].pool.copy_(own_part(whole, part))
    return whole, workers


@pytest.mark.parametrize(
    ("spec", "of", "to"),
    [(SMALL, ONE, TWO), (SMALL, FOUR, ONE), (SMALL, STAGES, TWO), (SMALL, TWO, TWO), (LARGE, TWO, FOUR)],
    ids=["1 to 2", "4 to 1", "stages to 2", "2 to 2", "2 to 4, large"],
)
def test_a_rank_gets_its_part_of_blocks_from_ranks_of_other_parts(
    site: Site, spec: KVSpec, of: ParallelSizes, to: ParallelSizes
) -> None:
    whole, producers = producers_of(site, spec, of)
    parts = block_parts(spec, to)
    rank = len(parts) - 1
    consumer = site.worker(parts[rank].spec(spec))
    before = consumer.pool.clone()
    plan = plan_reads(spec, block_parts(spec, of), parts, rank)
    for number, ranges in plan.items():
        part = PartRead(block_parts(spec, of)[number].spec(spec), ranges)
        consumer.connector.connect(f"rank-{number}", producers[number].connector.describe(), part)
        pull = make_pull(producers[number], BLOCKS, pull_id=number, source=f"rank-{number}")
        consumer.connector.pull(pull)
    outcomes = consumer.collect(len(plan))
    assert [outcome.error for outcome in outcomes] == [""] * len(plan)
    assert sum(outcome.num_bytes for outcome in outcomes) == len(BLOCKS) * parts[rank].spec(spec).block_bytes
    expected = own_part(whole, parts[rank])
    for local, remote in BLOCKS.items():
        assert torch.equal(consumer.pool[local], expected[remote])
    untouched = [block for block in range(16) if block not in BLOCKS]
    assert torch.equal(consumer.bytes[untouched], before.flatten(1).view(torch.uint8)[untouched])


def test_a_part_in_another_layout_is_refused(backend: str) -> None:
    with open_site(backend) as site:
        producer, consumer = site.worker(replace(SMALL, v_axes="HDT")), site.worker()
        ranges = plan_reads(SMALL, block_parts(SMALL, ONE), block_parts(SMALL, ONE), 0)[0]
        with pytest.raises(IncompatibleWorkerError, match=r"v_axes .* is 'HDT'.*allowed: 'HTD'"):
            consumer.connector.connect("rank-0", producer.connector.describe(), PartRead(SMALL, ranges))
