"""The index of one pool, and the changes it reports to routers."""

from __future__ import annotations

from baton_core.prefix_cache import PrefixCache
from baton_core.router_messages import CacheDelta


def test_the_longest_run_from_the_start_is_found() -> None:
    cache = PrefixCache()
    for block_id, block_hash in ((4, b"a"), (2, b"b"), (9, b"d")):
        cache.insert(block_id, block_hash)
    assert cache.find_prefix([b"a", b"b", b"c", b"d"]) == [4, 2]
    assert cache.find_prefix([b"d"]) == [9]
    assert cache.find_prefix([b"c"]) == []


def test_a_content_is_kept_once() -> None:
    cache = PrefixCache()
    assert cache.insert(1, b"a")
    assert not cache.insert(2, b"a")
    assert (cache.find(b"a"), cache.hash_of(2), len(cache)) == (1, None, 1)


def test_a_block_being_imported_is_not_a_valid_one() -> None:
    cache = PrefixCache()
    cache.begin_import(3, b"a")
    assert (cache.find(b"a"), cache.find_importing(b"a")) == (None, 3)
    assert cache.find_prefix([b"a"]) == []
    cache.end_import(3, b"a")
    assert cache.find_importing(b"a") is None


def test_the_delta_names_what_changed_since_the_last_one() -> None:
    cache = PrefixCache()
    cache.insert(1, b"a")
    cache.insert(2, b"b")
    assert cache.take_delta() == CacheDelta(stored=(b"a", b"b"))
    assert cache.take_delta() is None
    cache.remove(1)
    cache.insert(3, b"c")
    assert cache.take_delta() == CacheDelta(stored=(b"c",), removed=(b"a",))


def test_changes_that_cancel_out_are_not_reported() -> None:
    cache = PrefixCache()
    cache.insert(1, b"a")
    cache.remove(1)
    assert cache.take_delta() is None
    cache.insert(1, b"a")
    cache.take_delta()
    cache.remove(1)
    cache.insert(2, b"a")
    assert cache.take_delta() is None


def test_removing_an_unknown_block_changes_nothing() -> None:
    cache = PrefixCache()
    cache.remove(5)
    assert cache.take_delta() is None


def test_a_snapshot_holds_every_findable_hash() -> None:
    cache = PrefixCache()
    for block_id, block_hash in enumerate((b"a", b"b", b"c")):
        cache.insert(block_id, block_hash)
    cache.remove(1)
    assert cache.snapshot() == (b"a", b"c")
