"""The index of one pool, and the changes it reports to routers."""

from __future__ import annotations

from baton_core.blocks.block_hash import group_address
from baton_core.blocks.prefix_cache import PrefixCache
from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.kv_events.cache_events import BlockContent


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
    cache.begin_pull(3, b"a")
    assert (cache.find(b"a"), cache.find_pulling(b"a")) == (None, 3)
    cache.end_pull(3, b"a")
    assert cache.find_pulling(b"a") is None


def test_the_delta_names_what_changed_since_the_last_one() -> None:
    cache = PrefixCache()
    cache.insert(1, b"a")
    cache.insert(2, b"b")
    assert cache.take_delta() == CacheDelta(stored=(b"a", b"b"), number=1)
    assert cache.take_delta() is None
    cache.remove(1)
    cache.insert(3, b"c")
    assert cache.take_delta() == CacheDelta(stored=(b"c",), removed=(b"a",), number=2)


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
    assert cache.snapshot().stored == (plain,)
    assert cache.take_delta() == CacheDelta(stored=(plain,), number=1)
    for group in range(3):
        cache.remove(group)
    assert cache.take_delta() == CacheDelta(removed=(plain,), number=2)


def test_a_snapshot_holds_every_findable_hash() -> None:
    cache = PrefixCache()
    for block_id, block_hash in enumerate((b"a", b"b", b"c")):
        cache.insert(block_id, block_hash)
    cache.remove(1)
    assert cache.snapshot() == CacheDelta(stored=(b"a", b"c"), number=0, is_snapshot=True)


def test_a_snapshot_has_the_number_of_the_last_change_taken() -> None:
    cache = PrefixCache()
    assert cache.snapshot() == CacheDelta(number=0, is_snapshot=True)
    for number, block_hash in enumerate((b"a", b"b"), start=1):
        cache.insert(number, block_hash)
        delta = cache.take_delta()
        assert delta is not None
        assert delta.number == cache.snapshot().number == number


def test_an_emptied_cache_is_told_of_as_a_snapshot_of_what_came_after() -> None:
    cache = PrefixCache()
    cache.insert(1, b"a")
    cache.insert(2, b"b")
    cache.take_delta()
    cache.remove(1)
    cache.remove(2)
    cache.mark_cleared()
    cache.insert(1, b"b")
    assert cache.take_delta() == CacheDelta(stored=(b"b",), number=2, is_snapshot=True)
    assert cache.take_delta() is None


def test_contents_are_told_of_what_the_next_delta_tells_as_stored() -> None:
    cache = PrefixCache()
    contents = {name: BlockContent(index=0, parent=None, token_ids=(name,)) for name in b"abc"}
    for block_id, (name, content) in enumerate(contents.items()):
        cache.insert(block_id, bytes([name]), content)
    cache.insert(9, b"a", contents[ord("a")])
    cache.remove(1)
    assert cache.pending_contents == (contents[ord("a")], contents[ord("c")])
    cache.take_delta()
    assert cache.pending_contents == ()
