"""A follower copes with batches that are late, lost or repeated, and with a producer that started again."""

from __future__ import annotations

from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.kv_events.encoding import KVEventBatch
from baton_core.kv_events.event_stream import MAX_HELD, EventStream, FollowedChange
from baton_core.kv_events.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent


def stored(*hashes: bytes | int, epoch: int | None = 1, medium: str = "GPU", group: int = 0) -> BlockStored:
    return BlockStored(
        block_hashes=hashes,
        parent_block_hash=None,
        token_ids=(),
        block_size=4,
        lora_id=None,
        medium=medium,
        lora_name=None,
        group_idx=group,
        epoch=epoch,
    )


def batch(sequence: int, *events: KVEvent, epoch: int | None = 1) -> KVEventBatch:
    """Return the producer's batch of this number; by default it stored a block of the same number."""
    named = events or (stored(b"%d-%d" % (epoch or 0, sequence), epoch=epoch),)
    return KVEventBatch(ts=float(sequence + 1000 * (epoch or 0)), events=named)


def names(changes: list[FollowedChange]) -> list[tuple[int, bool]]:
    return [(change.sequence, change.delta.is_snapshot) for change in changes]


def replay(stream: EventStream, *sequences: int, epoch: int | None = 1) -> list[tuple[int, bool]]:
    """Answer a replay completely with these batches."""
    changes = [one for number in sequences for one in stream.on_replayed(number, batch(number, epoch=epoch))]
    return names(changes + stream.end_replay(is_complete=True))


def started(*sequences: int, epoch: int | None = 1) -> EventStream:
    """A stream that has read these batches by replay."""
    stream = EventStream()
    assert stream.wants_replay
    assert stream.begin_replay() == 0
    replay(stream, *sequences, epoch=epoch)
    return stream


def test_the_first_change_begins_anew_and_the_others_follow_in_order() -> None:
    stream = started()
    assert names(stream.on_live(0, batch(0))) == [(0, True)]
    (change,) = stream.on_live(1, batch(1))
    assert change.delta == CacheDelta(stored=(b"1-1",), number=2)
    assert change.epoch == 1
    assert not stream.wants_replay


def test_a_gap_is_filled_by_a_replay_before_what_came_after_it() -> None:
    stream = started(0, 1)
    assert stream.on_live(4, batch(4)) == []
    assert stream.on_live(5, batch(5)) == []
    assert stream.wants_replay
    assert stream.begin_replay() == 1, "the last one read is asked for again"
    assert replay(stream, 1, 2, 3, 4) == [(2, False), (3, False), (4, False), (5, False)]


def test_what_a_replay_brought_already_is_not_told_again() -> None:
    stream = started(0, 1, 2)
    assert stream.on_live(2, batch(2)) == []
    assert names(stream.on_live(3, batch(3))) == [(3, False)]


def test_what_cannot_be_had_again_makes_the_next_change_a_snapshot() -> None:
    stream = started(0, 1)
    stream.on_live(9, batch(9))
    stream.begin_replay()
    assert replay(stream, 7, 8) == [(7, True), (8, False), (9, False)]


def test_without_an_answer_a_follower_goes_on_with_what_it_has() -> None:
    stream = started(0, 1)
    stream.on_live(4, batch(4))
    stream.begin_replay()
    assert names(stream.end_replay(is_complete=False)) == [(4, True)]
    assert not stream.wants_replay


def test_a_late_follower_may_want_no_more_than_the_end() -> None:
    stream = EventStream(first=3)
    assert stream.begin_replay() == 3
    assert replay(stream, 3, 4) == [(3, True), (4, False)]


def test_another_epoch_is_another_start() -> None:
    stream = started(*range(5))
    assert stream.on_live(7, batch(7, epoch=2)) == []
    assert stream.begin_replay() == 0
    assert replay(stream, *range(7), epoch=2) == [(0, True), *((number, False) for number in range(1, 8))]


def test_a_sequence_number_that_goes_back_is_another_start() -> None:
    stream = started()
    for number in range(5):
        stream.on_live(number, batch(number, epoch=None))
    assert names(stream.on_live(0, batch(0, epoch=None))) == [(0, True)]


def test_a_restart_is_noticed_in_silence() -> None:
    """The new one has published less than the old one had."""
    stream = started(*range(5))
    assert stream.begin_replay() == 4
    assert replay(stream) == []
    assert stream.wants_replay
    assert stream.begin_replay() == 0
    assert replay(stream, 0, 1, epoch=2) == [(0, True), (1, False)]


def test_a_restart_is_noticed_by_what_is_not_the_batch_that_was_read() -> None:
    stream = started(*range(5), epoch=None)
    assert stream.begin_replay() == 4
    other = KVEventBatch(ts=5000.0, events=(stored(b"other", epoch=None),))
    assert stream.on_replayed(4, other) == []
    assert stream.end_replay(is_complete=True) == []
    assert stream.begin_replay() == 0
    assert replay(stream, *range(4), epoch=None) == [
        (0, True),
        (1, False),
        (2, False),
        (3, False),
        (4, False),
    ]


def test_a_silent_producer_that_is_the_same_changes_nothing() -> None:
    stream = started(*range(5))
    assert stream.begin_replay() == 4
    assert replay(stream, 4) == []
    assert not stream.wants_replay


def test_an_unreadable_batch_is_lost() -> None:
    stream = started(0, 1)
    stream.skip(2)
    assert names(stream.on_live(3, batch(3))) == [(3, True)]


def test_only_so_many_wait() -> None:
    stream = started()
    for number in range(1, MAX_HELD + 1):
        assert stream.on_live(number, batch(number)) == []
    assert names(stream.on_live(MAX_HELD + 1, batch(MAX_HELD + 1))) == [(MAX_HELD + 1, True)]


def test_a_batch_comes_to_what_holds_after_it() -> None:
    stream = started(0)
    removed = BlockRemoved(block_hashes=(b"a", b"old"), medium="GPU")
    (change,) = stream.on_live(1, batch(1, stored(b"a", b"b"), removed, stored(b"c")))
    assert change.delta == CacheDelta(stored=(b"b", b"c"), removed=(b"a", b"old"), number=2)
    (change,) = stream.on_live(2, batch(2, stored(b"d"), AllBlocksCleared(), stored(b"e")))
    assert change.delta == CacheDelta(stored=(b"e",), number=3, is_snapshot=True)


def test_other_pools_and_groups_are_left_out_and_numbers_become_bytes() -> None:
    stream = started(0)
    (change,) = stream.on_live(1, batch(1, stored(-1, 5), stored(b"x", medium="CPU"), stored(b"y", group=1)))
    assert change.delta.stored == (b"\xff" * 8, bytes(7) + b"\x05")
