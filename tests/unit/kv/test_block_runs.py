from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from baton_core.worker.worker_events import BlockPull
from baton_kv.block_runs import merge_runs


def make_blocks(*pairs: tuple[int, int]) -> list[BlockPull]:
    """From (remote block, local block) pairs."""
    return [BlockPull(remote_block_id=remote, local_block_id=local) for remote, local in pairs]


def slices(blocks: list[BlockPull], max_blocks: int = 100) -> list[tuple[slice, slice]]:
    return list(merge_runs(blocks, max_blocks))


def test_blocks_adjacent_on_both_sides_make_one_run() -> None:
    assert slices(make_blocks((4, 7), (5, 8), (6, 9))) == [(slice(4, 7), slice(7, 10))]


def test_a_gap_on_either_side_ends_a_run() -> None:
    assert slices(make_blocks((0, 0), (1, 2), (3, 3))) == [
        (slice(0, 1), slice(0, 1)),
        (slice(1, 2), slice(2, 3)),
        (slice(3, 4), slice(3, 4)),
    ]


def test_descending_blocks_do_not_merge() -> None:
    assert len(slices(make_blocks((2, 2), (1, 1), (0, 0)))) == 3


def test_a_run_is_cut_at_its_bound() -> None:
    blocks = make_blocks(*((block, block) for block in range(5)))
    assert [remote for remote, _ in slices(blocks, 2)] == [slice(0, 2), slice(2, 4), slice(4, 5)]


def test_no_copies_make_no_run() -> None:
    assert slices([]) == []


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5))), st.integers(1, 4))
def test_runs_name_each_copy_once_in_order(pairs: list[tuple[int, int]], max_blocks: int) -> None:
    runs = list(merge_runs(make_blocks(*pairs), max_blocks))
    named = [
        pair
        for remote, local in runs
        for pair in zip(range(remote.start, remote.stop), range(local.start, local.stop), strict=True)
    ]
    assert named == pairs
    assert all(local.stop - local.start <= max_blocks for _, local in runs)
