"""A worker reports its cache: numbered changes, and events from which a follower rebuilds it."""

from __future__ import annotations

from typing import Any

import pytest

from baton_core.blocks.block_hash import block_hashes, root_hash
from baton_core.kv_events.cache_delta import CacheDelta
from baton_core.kv_events.cache_events import BlockContent, cache_events
from baton_core.kv_events.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from baton_core.sessions.control_messages import ControlAction
from baton_core.worker.worker_events import CacheChanged, RouterJoined
from tests.builders import (
    BLOCK_SIZE,
    make_identity,
    make_kv_spec,
    make_prompt,
    make_request,
    make_worker_config,
)
from tests.unit.core.workers import ROUTER, Pair, Worker, make_worker

ROOT = root_hash(make_identity())


class Follower:
    """Knows of a cache what it was told, and believes only what the tokens prove."""

    def __init__(self, root: bytes = ROOT) -> None:
        self.hashes: set[bytes] = set()
        self.numbers: list[int] = []
        self.events: list[KVEvent] = []
        self._root = root

    def take(self, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, CacheChanged):
                self.numbers.append(effect.delta.number)
                for event in effect.events:
                    self._apply(event)

    def _apply(self, event: KVEvent) -> None:
        self.events.append(event)
        assert event.epoch == 1
        match event:
            case BlockStored():
                assert (event.block_size, event.medium) == (BLOCK_SIZE, "GPU")
                parent = event.parent_block_hash or self._root
                assert isinstance(parent, bytes)
                assert parent in {self._root, *self.hashes}, "a prefix comes before what extends it"
                told = list(event.block_hashes)
                assert told == block_hashes(parent, event.token_ids, BLOCK_SIZE)
                self.hashes.update(block_hashes(parent, event.token_ids, BLOCK_SIZE))
            case BlockRemoved():
                self.hashes.difference_update(event.block_hashes)  # type: ignore[arg-type]
            case AllBlocksCleared():
                self.hashes.clear()


class Followed(Worker):
    """A worker with a follower that hears everything."""

    def __init__(self, root: bytes = ROOT, **changes: Any) -> None:
        super().__init__(make_worker_config(publishes_cache=True, **changes))
        self.follower = Follower(root)

    @property
    def cached(self) -> set[bytes]:
        return set(self.core.pool.cache.snapshot().stored)

    def finish(self, request_id: str, **request: Any) -> None:
        """Compute a request to its end."""
        self.generate(make_request(request_id, **request))
        self.run()
        assert self.follower.hashes == self.cached

    def reset(self) -> list[Any]:
        return self.ask(ControlAction.RESET_PREFIX_CACHE)

    def _file(self, effects: list[Any]) -> list[Any]:
        self.follower.take(effects)
        return super()._file(effects)


@pytest.mark.parametrize("windows", [(None,), (None, 8)])
def test_a_follower_rebuilds_the_cache_through_prompts_decodes_and_evictions(
    windows: tuple[int | None, ...],
) -> None:
    worker = Followed(kv_spec=make_kv_spec(windows), num_blocks=12 * len(windows))
    for number in range(6):
        worker.finish(f"r{number}", prompt=9 + number, first=1 + 100 * (number // 2))
    numbers, events = worker.follower.numbers, worker.follower.events
    assert numbers == list(range(1, len(numbers) + 1))
    assert any(isinstance(event, BlockRemoved) for event in events)
    assert any(isinstance(event, BlockStored) and len(event.block_hashes) > 1 for event in events)


def test_nothing_is_told_to_followers_unless_it_is_published() -> None:
    worker = make_worker()
    effects = worker.generate(make_request())
    effects += worker.run()
    assert len(worker.core.pool.cache) > 0
    assert not any(isinstance(effect, CacheChanged) for effect in effects)
    assert worker.core.pool.cache.pending_contents == ()


def test_followers_hear_of_imported_blocks_and_of_those_decoded_after_them() -> None:
    pair = Pair()
    worker = pair.d = Followed()
    pair.hand_over(make_request(prompt=11))
    imported = set(worker.cached)
    worker.run()
    assert pair.num_pulled_blocks > 0
    assert imported < worker.cached == worker.follower.hashes


def test_an_emptied_cache_is_told_in_one_word() -> None:
    worker = Followed()
    worker.feed(RouterJoined(router_id=ROUTER))
    worker.finish("a", prompt=9)
    worker.take_told()
    worker.reset()
    assert worker.follower.events[-1] == AllBlocksCleared(epoch=1)
    (number,) = worker.follower.numbers[-1:]
    assert worker.heard(CacheDelta) == [CacheDelta(number=number, is_snapshot=True)]
    assert worker.follower.hashes == set()
    worker.reset()
    assert worker.follower.numbers[-1] == number, "nothing changes a second time"


def test_a_reset_while_blocks_are_in_use_names_what_is_gone() -> None:
    worker = Followed()
    worker.finish("old", prompt=9)
    worker.generate(make_request("new", prompt=9, first=100))
    worker.step()
    worker.reset()
    assert isinstance(worker.follower.events[-1], BlockRemoved)
    assert worker.follower.hashes == worker.cached != set()


def test_a_salt_is_a_key_of_the_first_block() -> None:
    worker = Followed(root_hash(make_identity(), "tenant"))
    worker.finish("a", prompt=9, cache_salt="tenant")
    stored = [event for event in worker.follower.events if isinstance(event, BlockStored)]
    keys = {event.parent_block_hash is None: event.extra_keys for event in stored}
    assert keys == {True: (("tenant",), None), False: None}


def test_blocks_that_follow_each_other_share_an_event_and_branches_come_after() -> None:
    tokens = make_prompt(BLOCK_SIZE)
    contents = {
        b"late": BlockContent(index=2, parent=b"mid", token_ids=tokens),
        b"fork": BlockContent(index=1, parent=b"head", token_ids=tokens),
        b"mid": BlockContent(index=1, parent=b"head", token_ids=tokens),
        b"head": BlockContent(index=0, parent=None, token_ids=tokens),
        b"far": BlockContent(index=5, parent=b"elsewhere", token_ids=tokens),
    }
    delta = CacheDelta(stored=tuple(contents), removed=(b"gone",), number=4)
    removed, *stored = cache_events(delta, tuple(contents.values()), block_size=BLOCK_SIZE, epoch=7)
    assert removed == BlockRemoved(block_hashes=(b"gone",), medium="GPU", epoch=7)
    told = {event.block_hashes: event.parent_block_hash for event in stored if isinstance(event, BlockStored)}
    assert told == {(b"head", b"fork"): None, (b"mid", b"late"): b"head", (b"far",): b"elsewhere"}
