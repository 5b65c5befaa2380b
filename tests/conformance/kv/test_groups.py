"""Groups of ranks whose pools are apart exchange blocks over every backend, and know wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import torch

from baton_core.errors import IncompatibleWorkerError
from baton_core.kv_layout.kv_spec import KVSpec
from baton_core.ranks.rank_layout import ParallelSizes
from baton_core.ranks.transfer_plan import ByteRange, plan_reads
from baton_core.worker.worker_events import AbortPull
from baton_kv import rank_connector
from baton_kv.curve import CurveKeys
from baton_kv.description import decode_group
from baton_kv.tcp import TcpConnector
from baton_kv.transport import Listen
from tests.builders import make_identity
from tests.conformance.kv.groups import NUM_BLOCKS, open_groups
from tests.conformance.kv.pairs import LARGE, SMALL, Site, needs_nixl, open_site

BLOCKS = {4: 1, 5: 2, 9: 0}
ONE, TWO, FOUR = (ParallelSizes(tensor=size) for size in (1, 2, 4))
STAGES = ParallelSizes(pipeline=2)
DEEP = replace(SMALL, num_layers=4, groups=())
UNEVEN = ParallelSizes(pipeline=2, stages=(1, 3))


@pytest.fixture(params=["shared_memory", "tcp", "auto", "in_process", pytest.param("nixl", marks=needs_nixl)])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with open_site(request.param) as opened:
        yield opened


@pytest.mark.parametrize(
    "sizes",
    [
        (ONE, TWO, FOUR, ONE),
        (STAGES, TWO, ParallelSizes(tensor=2, pipeline=2)),
        (UNEVEN, STAGES, UNEVEN, UNEVEN, TWO),
    ],
    ids=["1 to 2 to 4 to 1", "stages to 2 to both", "stages of other lengths"],
)
def test_blocks_go_from_group_to_group_and_stay_the_same(
    site: Site, sizes: tuple[ParallelSizes, ...]
) -> None:
    with open_groups(site, DEEP, *sizes) as groups:
        first, held = groups[0], groups[0].blocks()
        block_map = BLOCKS
        for producer, consumer in pairwise(groups):
            before = consumer.blocks()
            outcome = consumer.pull(producer, block_map)
            assert (outcome.error, outcome.failed_block_ids) == ("", ())
            after = consumer.blocks()
            for local, remote in BLOCKS.items():
                assert torch.equal(after[local], held[remote])
            untouched = [block for block in range(len(after)) if block not in BLOCKS]
            assert torch.equal(after[untouched], before[untouched])
            block_map = {local: local for local in BLOCKS}
        assert torch.equal(first.blocks(), held)


def test_a_group_has_no_transport_in_common_with_one_pool_or_another_layout(site: Site) -> None:
    transposed = replace(SMALL, v_axes="HDT")
    with open_groups(site, SMALL, TWO) as (group,), open_groups(site, transposed, TWO) as (other,):
        own = make_identity(transport=group.leader.capabilities.name)
        names = (site.worker().connector.capabilities.name, other.leader.capabilities.name)
        for name in (one for joined in names for one in joined.split("+")):
            with pytest.raises(IncompatibleWorkerError, match="the same --rank-pools"):
                own.require_compatible(make_identity(transport=name))


@pytest.mark.parametrize("backend", ["tcp", pytest.param("nixl", marks=needs_nixl)])
def test_pools_that_are_placed_beforehand_are_served(backend: str) -> None:
    with (
        open_site(backend) as site,
        open_groups(site, SMALL, TWO, FOUR, registers=True) as (producer, consumer),
    ):
        assert consumer.pull(producer, BLOCKS).error == ""
        for local, remote in BLOCKS.items():
            assert torch.equal(consumer.blocks()[local], producer.blocks()[remote])


def test_a_pool_that_shared_memory_has_not_placed_is_no_pool_of_it(checked: Site) -> None:
    with pytest.raises(AssertionError, match="places its pool itself"):
        checked.make(SMALL, 1).register(torch.zeros(1, *SMALL.block_shape))


@pytest.fixture
def checked() -> Iterator[Site]:
    with open_site("shared_memory") as opened:
        yield opened


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_large_blocks_are_read_in_several_steps(is_encrypted: bool) -> None:
    def make(spec: KVSpec, epoch: int) -> TcpConnector:
        return TcpConnector(spec, epoch, Listen(curve=CurveKeys.make() if is_encrypted else None))

    with ExitStack() as exits, open_groups(Site(make, exits), LARGE, TWO, FOUR) as (producer, consumer):
        assert consumer.pull(producer, {local: 15 - local for local in range(15)}).error == ""
        assert torch.equal(consumer.blocks()[:15], producer.blocks().flip(0)[:15])


def test_a_head_that_changed_at_one_rank_fails_its_block(checked: Site) -> None:
    with open_groups(checked, SMALL, FOUR, TWO) as (producer, consumer):
        pull = producer.prepare(BLOCKS)
        for rank in (0, 1):  # both hold the first head
            producer.pools[rank][2, 1, 0, 0, 0, 0] += 1
        outcome = consumer.run(pull)
        assert outcome.failed_block_ids == (5,)
        assert outcome.error == "checksum of 1 of 3 blocks does not match"


def test_every_copy_of_a_head_is_verified(checked: Site) -> None:
    with open_groups(checked, SMALL, FOUR, FOUR) as (producer, consumer):
        pull = producer.prepare(BLOCKS)
        producer.pools[3][0] += 1  # rank 2 holds the same head, unchanged
        assert consumer.run(pull).failed_block_ids == (9,)


def reading_a_neighbour(ranges: Sequence[ByteRange]) -> list[ByteRange]:
    """Take another head of the same layer."""
    return [replace(one, source=one.source ^ SMALL.head_bytes) for one in ranges]


def swapping_heads(ranges: Sequence[ByteRange]) -> list[ByteRange]:
    """Put the first two heads in each other's place, each of them whole."""
    first, second = ranges[:2]
    return [replace(first, target=second.target), replace(second, target=first.target), *ranges[2:]]


@pytest.mark.parametrize("mistake", [reading_a_neighbour, swapping_heads])
def test_a_plan_that_is_wrong_by_one_head_is_found(
    checked: Site, monkeypatch: pytest.MonkeyPatch, mistake: Callable[[Sequence[ByteRange]], list[ByteRange]]
) -> None:
    def plan(*arguments: Any) -> dict[int, tuple[ByteRange, ...]]:
        return {producer: tuple(mistake(ranges)) for producer, ranges in plan_reads(*arguments).items()}

    with open_groups(checked, SMALL, ONE, TWO) as (producer, consumer):
        assert consumer.pull(producer, BLOCKS).error == ""
        monkeypatch.setattr(rank_connector, "plan_reads", plan)
        outcome = consumer.pull(producer, BLOCKS, name="prefill-1")
        assert outcome.failed_block_ids == tuple(BLOCKS)


def test_a_group_of_another_cache_is_refused(checked: Site) -> None:
    with open_groups(checked, SMALL, TWO) as (producer,):
        with pytest.raises(IncompatibleWorkerError, match="layout of the peer's pool"):
            decode_group(producer.description, replace(SMALL, head_dim=8))
        group = msgspec.structs.replace(decode_group(producer.description, SMALL), tensor=4)
        with pytest.raises(IncompatibleWorkerError, match="members of the peer's group are 2; allowed: 4"):
            decode_group(group.encode(), SMALL)
        for stages in ((1, 1), (3,), (0, 2)):
            group = msgspec.structs.replace(decode_group(producer.description, SMALL), stages=stages)
            with pytest.raises(IncompatibleWorkerError, match=r"stages of the peer's group are|>= 1"):
                decode_group(group.encode(), SMALL)


def test_an_aborted_pull_ends_at_all_ranks_and_the_next_one_goes_on(checked: Site) -> None:
    with open_groups(checked, LARGE, ONE, TWO) as (producer, consumer):
        pull = producer.prepare({local: local for local in range(NUM_BLOCKS)})
        consumer.thread.execute(pull)
        outcome = consumer.run(AbortPull(pull_id=1))
        assert (outcome.error, len(outcome.failed_block_ids)) == ("it was aborted", NUM_BLOCKS)
        assert consumer.run(pull).error == ""
        assert torch.equal(consumer.blocks(), producer.blocks())
