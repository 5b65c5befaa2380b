"""Ranks of two groups exchange blocks, however each of them divides layers and KV heads."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from baton_core.errors import InvalidConfigError
from baton_core.kv_layout.kv_spec import KVGroup, KVSpec
from baton_core.ranks.rank_layout import ParallelSizes, RankPlace
from baton_core.ranks.transfer_plan import BlockPart, block_parts, copy_number, plan_reads, require_separable

SIZES = [ParallelSizes(tensor=t, pipeline=p) for t, p in product((1, 2, 4, 8), (1, 2, 3))]
ODD = [
    tuple(BlockPart(range(7), heads) for heads in (range(3), range(3, 8))),
    tuple(BlockPart(range(7), heads) for heads in (range(2), range(2, 4), range(4, 8))),
    tuple(BlockPart(layers, range(8)) for layers in (range(5), range(5, 7))),
]
"""Groups whose parts neither divide each other nor are equal."""


def make_spec(num_kv_heads: int) -> KVSpec:
    return KVSpec(num_layers=7, num_kv_heads=num_kv_heads, head_dim=2, block_size=3, dtype="bfloat16")


def whole_block(spec: KVSpec) -> np.ndarray:
    """A block in which no two elements are equal, `spec.block_shape uint16`."""
    return np.arange(spec.block_bytes // 2, dtype=np.uint16).reshape(spec.block_shape)


def held(block: np.ndarray, part: BlockPart) -> np.ndarray:
    """Return the part of it that a rank's pool has, as bytes."""
    own = block[part.layers.start : part.layers.stop, :, part.heads.start : part.heads.stop]
    return np.ascontiguousarray(own).reshape(-1).view(np.uint8)


def check(spec: KVSpec, producers: tuple[BlockPart, ...], consumers: tuple[BlockPart, ...]) -> None:
    """Carry out the plan of every consumer and compare with what one process has."""
    block = whole_block(spec)
    sources = [held(block, part) for part in producers]
    for rank, part in enumerate(consumers):
        wanted = held(block, part)
        assert wanted.nbytes == part.spec(spec).block_bytes
        arrived, num_bytes = np.zeros_like(wanted), 0
        for producer, ranges in plan_reads(spec, producers, consumers, rank).items():
            for one in ranges:
                to, of = (
                    slice(one.target, one.target + one.num_bytes),
                    slice(one.source, one.source + one.num_bytes),
                )
                arrived[to] = sources[producer][of]
                num_bytes += one.num_bytes
        assert np.array_equal(arrived, wanted)
        assert num_bytes == wanted.nbytes, "copies of heads are read once"


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4, 8])
def test_every_group_gets_the_blocks_of_every_other(num_kv_heads: int) -> None:
    spec = make_spec(num_kv_heads)
    groups = [block_parts(spec, sizes) for sizes in SIZES] + (ODD if num_kv_heads == 8 else [])
    for producers, consumers in product(groups, groups):
        check(spec, producers, consumers)


def test_ranks_that_hold_the_same_read_whole_blocks_of_each_other() -> None:
    spec, sizes = make_spec(8), ParallelSizes(tensor=4, pipeline=2)
    parts = block_parts(spec, sizes)
    for rank, part in enumerate(parts):
        ((producer, ranges),) = plan_reads(spec, parts, parts, rank).items()
        assert (producer, len(ranges), ranges[0].num_bytes) == (rank, 1, part.spec(spec).block_bytes)


def test_consumers_are_spread_over_the_copies_of_a_head() -> None:
    spec = make_spec(1)
    parts = block_parts(spec, ParallelSizes(tensor=4))
    assert [list(plan_reads(spec, parts, parts, rank)) for rank in range(4)] == [[0], [1], [2], [3]]


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4, 8])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_ranks_of_one_copy_hold_each_piece_of_a_block_once(sizes: ParallelSizes, num_kv_heads: int) -> None:
    spec = make_spec(num_kv_heads)
    places = [RankPlace(sizes=sizes, rank=rank) for rank in range(sizes.num_ranks)]
    copies = [copy_number(spec, place) for place in places]
    for copy in set(copies):
        parts = [
            part for part, number in zip(block_parts(spec, sizes), copies, strict=True) if number == copy
        ]
        cells = sorted(cell for part in parts for cell in part.cells(spec))
        assert cells == list(range(7 * 2 * num_kv_heads))


def test_a_piece_that_no_producer_has_is_refused() -> None:
    spec = make_spec(2)
    with pytest.raises(InvalidConfigError, match="piece 1 of a block is at no rank"):
        plan_reads(spec, [BlockPart(range(7), range(1))], [BlockPart(range(7), range(1, 2))], 0)


def test_caches_that_cannot_be_divided_are_refused() -> None:
    groups = (KVGroup(layers=(0, 2)), KVGroup(layers=(1, 3), window=4))
    spec = KVSpec(num_layers=2, num_kv_heads=2, head_dim=2, block_size=3, dtype="bfloat16", groups=groups)
    require_separable(spec, ParallelSizes(tensor=2))
    check(spec, block_parts(spec, ParallelSizes()), block_parts(spec, ParallelSizes(tensor=2)))
    with pytest.raises(InvalidConfigError, match=r"pipeline_parallel_size is 2.*allowed: 1"):
        require_separable(spec, ParallelSizes(pipeline=2))
    tokens_first = KVSpec(
        num_layers=2, num_kv_heads=2, head_dim=2, block_size=3, dtype="float32", k_axes="THD"
    )
    with pytest.raises(InvalidConfigError, match=r"k_axes is 'THD'.*allowed: HTD, HDT"):
        require_separable(tokens_first, ParallelSizes(tensor=2))
