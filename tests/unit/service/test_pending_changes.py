from __future__ import annotations

from baton_core.kv_events.cache_delta import CacheDelta
from baton_worker.redis.pending_changes import PendingChanges

A, B, C = b"a", b"b", b"c"


def stored(*hashes: bytes) -> CacheDelta:
    return CacheDelta(stored=hashes)


def removed(*hashes: bytes) -> CacheDelta:
    return CacheDelta(removed=hashes)


def published(changes: PendingChanges) -> PendingChanges:
    """With the first snapshot written."""
    changes.take()
    changes.confirm()
    return changes


def test_the_first_write_is_a_snapshot_of_what_came_before() -> None:
    changes = PendingChanges()
    changes.add(stored(A, B))
    changes.add(removed(A))
    assert changes.take() == CacheDelta(number=1, stored=(B,), is_snapshot=True)


def test_what_comes_while_a_write_is_in_flight_goes_with_the_next_and_the_last_word_counts() -> None:
    changes = published(PendingChanges())
    changes.add(stored(A))
    assert changes.take() == CacheDelta(number=2, stored=(A,))
    changes.add(stored(B, C))
    changes.add(CacheDelta(stored=(A,), removed=(B,)))
    changes.confirm()
    assert changes.take() == CacheDelta(number=3, stored=(C, A), removed=(B,))
    changes.confirm()
    assert not changes.has_work
    assert changes.take() is None
    assert changes.num_held == 2


def test_a_write_that_was_never_confirmed_comes_again_as_it_was() -> None:
    changes = published(PendingChanges())
    changes.add(stored(A))
    first = changes.take()
    changes.add(stored(B))
    assert changes.has_work
    assert changes.take() == first == CacheDelta(number=2, stored=(A,))
    changes.confirm()
    assert changes.take() == CacheDelta(number=3, stored=(B,))


def test_more_changes_than_may_gather_become_a_snapshot() -> None:
    changes = published(PendingChanges(max_pending=2))
    changes.add(stored(A))
    assert changes.take() == CacheDelta(number=2, stored=(A,))
    changes.add(stored(B))
    changes.add(removed(A))
    changes.add(stored(C))
    changes.confirm()
    write = changes.take()
    assert write is not None
    assert (write.number, write.is_snapshot, set(write.stored), write.removed) == (3, True, {B, C}, ())
    changes.add(removed(C))
    changes.confirm()
    assert changes.take() == CacheDelta(number=4, removed=(C,))


def test_what_redis_lost_is_written_anew_under_the_next_number() -> None:
    changes = published(PendingChanges())
    changes.add(stored(A))
    changes.take()
    changes.republish()
    assert changes.take() == CacheDelta(number=3, stored=(A,), is_snapshot=True)


def test_a_cleared_cache_is_a_snapshot_of_what_was_stored_since() -> None:
    changes = published(PendingChanges())
    changes.add(stored(A, B))
    changes.take()
    changes.confirm()
    changes.add(CacheDelta(stored=(C,), is_snapshot=True))
    assert changes.take() == CacheDelta(number=3, stored=(C,), is_snapshot=True)
