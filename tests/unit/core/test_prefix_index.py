"""Which worker holds which prefix, as the router knows it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Sequence
from random import Random

import pytest

from baton_core.kv_events.cache_delta import CacheDelta
from baton_router.core.fleet.prefix_index import PrefixIndex

HASHES = [b"a", b"b", b"c"]


def make_index(**stored: bytes) -> PrefixIndex:
    index = PrefixIndex()
    for worker_id, names in stored.items():
        index.apply(worker_id, CacheDelta(stored=tuple(bytes([name]) for name in names)))
    return index


def counted(index: PrefixIndex, hashes: Sequence[bytes], worker_ids: Iterable[str]) -> dict[str, int]:
    """Return the cached blocks of these workers, 0 for those that hold none."""
    found = index.num_cached_blocks(hashes)
    return {worker_id: found.get(worker_id, 0) for worker_id in worker_ids}


def sweep(index: PrefixIndex, max_entries: int = 1) -> None:
    while index.needs_sweep:
        index.sweep(max_entries)


def test_each_worker_counts_its_own_prefix() -> None:
    index = make_index(x=b"abc", y=b"ab", z=b"bc")
    counts = counted(index, HASHES, ["x", "y", "z", "unknown"])
    assert counts == {"x": 3, "y": 2, "z": 0, "unknown": 0}


def test_without_the_first_block_nothing_is_found() -> None:
    assert counted(make_index(x=b"bc"), HASHES, ["x"]) == {"x": 0}
    assert counted(make_index(x=b"abc"), [], ["x"]) == {"x": 0}


def test_what_is_between_two_blocks_that_a_worker_holds_is_taken_to_be_there() -> None:
    assert counted(make_index(x=b"ac"), HASHES, ["x"]) == {"x": 3}


def test_only_those_that_hold_any_are_named() -> None:
    assert make_index(x=b"a", y=b"abc", z=b"bc").num_cached_blocks(HASHES) == {"x": 1, "y": 3}


def test_removed_blocks_are_forgotten() -> None:
    index = make_index(x=b"ab", y=b"ab")
    index.apply("x", CacheDelta(removed=(b"b", b"never stored")))
    assert counted(index, HASHES, ["x", "y"]) == {"x": 1, "y": 2}
    index.apply("y", CacheDelta(removed=(b"a", b"b")))
    assert len(index) == 1


def test_a_worker_that_leaves_takes_its_entries_along() -> None:
    index = make_index(x=b"ab", y=b"a")
    index.drop("x")
    assert counted(index, HASHES, ["x", "y"]) == {"x": 0, "y": 1}
    sweep(index)
    assert len(index) == 1
    index.drop("unknown")
    assert not index.needs_sweep


def test_a_worker_that_comes_later_does_not_inherit_the_place_of_one_that_left() -> None:
    index = make_index(x=b"ab", y=b"abc")
    index.drop("x")
    for _ in range(2):
        index.apply("z", CacheDelta(stored=(b"a",)))
        assert counted(index, HASHES, ["x", "y", "z"]) == {"x": 0, "y": 3, "z": 1}
        sweep(index)
        index.drop("z")


def test_more_workers_than_a_machine_word_has_bits() -> None:
    names = {f"w{number}": b"abc"[: number % 4] for number in range(100)}
    index = make_index(**names)
    assert counted(index, HASHES, names) == {name: len(held) for name, held in names.items()}


# --- lengths ---


@pytest.mark.parametrize("num_workers", [1, 7, 70])
def test_halving_finds_what_counting_finds(num_workers: int) -> None:
    rng = Random(num_workers)
    hashes = [rng.randbytes(16) for _ in range(97)]
    lengths = {
        f"w{number}": rng.choice((0, 1, 40, 96, 97, rng.randrange(98))) for number in range(num_workers)
    }
    index = PrefixIndex()
    for worker_id, length in lengths.items():
        index.apply(worker_id, CacheDelta(stored=tuple(hashes[:length])))
    assert counted(index, hashes, lengths) == lengths


# --- numbers and epochs ---


def test_a_change_that_was_missed_is_noticed_and_nothing_is_applied() -> None:
    index = PrefixIndex()
    assert index.apply("x", CacheDelta(stored=(b"a",), number=1))
    assert index.apply("x", CacheDelta(stored=(b"b",), number=1)), "another part of the same change"
    assert not index.apply("x", CacheDelta(stored=(b"c",), number=3))
    assert not index.apply("x", CacheDelta(removed=(b"a",), number=4))
    assert counted(index, HASHES, ["x"]) == {"x": 2}
    assert index.apply("x", CacheDelta(stored=(b"a",), number=4, is_snapshot=True))
    assert index.apply("x", CacheDelta(stored=(b"b",), number=5))
    assert counted(index, HASHES, ["x"]) == {"x": 2}


def test_who_begins_in_the_middle_has_missed_something() -> None:
    index = PrefixIndex()
    assert not index.apply("x", CacheDelta(stored=(b"a",), number=2))
    assert index.apply("x", CacheDelta(number=2, is_snapshot=True))
    assert index.apply("x", CacheDelta(stored=(b"a",), number=3))


def test_a_snapshot_replaces_what_was_known() -> None:
    index = make_index(x=b"abc", y=b"abc")
    index.apply("x", CacheDelta(stored=(b"a",), is_snapshot=True))
    assert counted(index, HASHES, ["x", "y"]) == {"x": 1, "y": 3}
    sweep(index)
    assert counted(index, HASHES, ["x", "y"]) == {"x": 1, "y": 3}


def test_a_new_epoch_begins_empty_and_the_old_one_is_heard_no_more() -> None:
    index = PrefixIndex()
    index.apply("x", CacheDelta(stored=(b"a", b"b"), number=1), epoch=1)
    assert index.apply("x", CacheDelta(stored=(b"a",), number=1), epoch=2)
    assert index.apply("x", CacheDelta(stored=(b"b",), number=2), epoch=1)
    assert counted(index, HASHES, ["x"]) == {"x": 1}
    index.begin_epoch("x", 2)
    assert counted(index, HASHES, ["x"]) == {"x": 1}
    index.begin_epoch("x", 3)
    assert counted(index, HASHES, ["x"]) == {"x": 0}
    assert not index.apply("x", CacheDelta(stored=(b"a",), number=3), epoch=3)


# --- sweeping ---


def test_a_sweep_does_a_bounded_part_and_loses_nothing_that_comes_meanwhile() -> None:
    rng = Random(5)
    hashes = [rng.randbytes(16) for _ in range(2000)]
    index = PrefixIndex()
    for worker_id in "xy":
        index.apply(worker_id, CacheDelta(stored=tuple(hashes)))
    index.drop("x")
    index.sweep(100)
    assert index.needs_sweep
    index.apply("z", CacheDelta(stored=tuple(hashes[:500])))
    index.drop("y")
    index.apply("x", CacheDelta(stored=tuple(hashes[:10])))
    sweep(index, 100)
    assert len(index) == 500
    counts = counted(index, hashes, "xyz")
    assert counts == {"x": 10, "y": 0, "z": 500}


def test_a_worker_that_held_nothing_needs_no_sweep() -> None:
    index = PrefixIndex()
    index.apply("x", CacheDelta(number=0, is_snapshot=True))
    index.apply("x", CacheDelta(number=0, is_snapshot=True))
    index.drop("x")
    assert not index.needs_sweep


@pytest.mark.slow
def test_a_block_takes_few_bytes() -> None:
    rng = Random(3)
    index = PrefixIndex()
    hashes = [tuple(rng.randbytes(16) for _ in range(1000)) for _ in range(60)]
    tracemalloc.start()
    for number, stored in enumerate(hashes):
        index.apply(f"w{number % 3}", CacheDelta(stored=stored))
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_bytes / len(index) < 150
