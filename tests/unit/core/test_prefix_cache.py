"""The index of one pool, and the changes it reports to routers."""

from __future__ import annotations

from baton_core.block_hash import group_address
from baton_core.prefix_cache import PrefixCache
from baton_core.router_messages import CacheDelta


def test_a_content_is_found_by_its_hash() -> None:
    cache = PrefixCache()
    for block_id, block_hash in ((4, b"a"), (2, b"b"), (9, b"d")):
        cache.insert(block_id, block_hash)
    assert [cache.find(block_hash) for block_hash in (b"a", b"c", b"d")] == [4, None, 9]
    assert cache.blocks([b"d", b"b"]) == [9, 2]


def test_a_content_is_kept_once() -> None:
    cache = PrefixCache()
    assert cache.insert(1, b"a")
    assert not cache.insert(2, b"a")
    assert (cache.find(b"a"), cache.hash_of(2), len(cache)) == (1, None, 1)


def test_a_block_being_imported_is_not_a_valid_one() -> None:
    cache = PrefixCache()
    cache.begin_import(3, b"a")
    assert (cache.find(b"a"), cache.find_importing(b"a")) == (None, 3)
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


def test_routers_hear_of_the_first_group_only() -> None:
    cache = PrefixCache()
    plain = b"0123456789abcdef"
    for group in range(3):
        cache.insert(group, group_address(plain, group))
    assert len(cache) == 3
    assert cache.snapshot() == (plain,)
    assert cache.take_delta() == CacheDelta(stored=(plain,))
    for group in range(3):
        cache.remove(group)
    assert cache.take_delta() == CacheDelta(removed=(plain,))


def test_a_snapshot_holds_every_findable_hash() -> None:
    cache = PrefixCache()
    for block_id, block_hash in enumerate((b"a", b"b", b"c")):
        cache.insert(block_id, block_hash)
    cache.remove(1)
    assert cache.snapshot() == (b"a", b"c")
