"""Which worker holds which prefix, as the router knows it."""

from __future__ import annotations

from baton_core.prefix_index import PrefixIndex
from baton_core.router_messages import CacheDelta

HASHES = [b"a", b"b", b"c"]


def make_index(**stored: bytes) -> PrefixIndex:
    index = PrefixIndex()
    for worker_id, names in stored.items():
        index.apply(worker_id, CacheDelta(stored=tuple(bytes([name]) for name in names)))
    return index


def test_each_worker_counts_its_own_prefix() -> None:
    index = make_index(x=b"abc", y=b"ab", z=b"bc")
    counts = index.num_cached_blocks(HASHES, ["x", "y", "z", "unknown"])
    assert counts == {"x": 3, "y": 2, "z": 0, "unknown": 0}


def test_a_gap_ends_a_prefix() -> None:
    assert make_index(x=b"ac").num_cached_blocks(HASHES, ["x"]) == {"x": 1}


def test_only_the_workers_asked_for_are_counted() -> None:
    assert make_index(x=b"a", y=b"abc").num_cached_blocks(HASHES, ["x"]) == {"x": 1}


def test_removed_blocks_are_forgotten() -> None:
    index = make_index(x=b"ab", y=b"ab")
    index.apply("x", CacheDelta(removed=(b"b", b"never stored")))
    assert index.num_cached_blocks(HASHES, ["x", "y"]) == {"x": 1, "y": 2}
    index.apply("y", CacheDelta(removed=(b"a", b"b")))
    assert len(index) == 1


def test_a_worker_that_leaves_takes_its_entries_along() -> None:
    index = make_index(x=b"ab", y=b"a")
    index.drop("x")
    assert index.num_cached_blocks(HASHES, ["x", "y"]) == {"x": 0, "y": 1}
    assert len(index) == 1
    index.drop("unknown")


def test_a_worker_that_comes_later_does_not_inherit_the_place_of_one_that_left() -> None:
    index = make_index(x=b"ab", y=b"abc")
    index.drop("x")
    index.apply("z", CacheDelta(stored=(b"a",)))
    assert index.num_cached_blocks(HASHES, ["y", "z"]) == {"y": 3, "z": 1}


def test_more_workers_than_a_machine_word_has_bits() -> None:
    names = {f"w{number}": b"abc"[: number % 4] for number in range(100)}
    index = make_index(**names)
    assert index.num_cached_blocks(HASHES, names) == {name: len(held) for name, held in names.items()}
