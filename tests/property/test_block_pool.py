"""The block pool under any order of calls: no block is lost, shared by mistake, or readable too early."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from baton_core.blocks.block_pool import BlockPool, BlockState

NUM_BLOCKS = 8
HASHES = [bytes([name]) for name in b"abcdef"]
READABLE = (BlockState.ACTIVE, BlockState.HELD, BlockState.CACHED)


class BlockPoolMachine(RuleBasedStateMachine):
    """Keeps its own books of references; the pool must agree with them after every call."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.tables: list[list[int]] = []
        self.leases: list[list[int]] = []
        self.importing: list[int] = []
        self.quarantined: list[int] = []
        self.generations = [0] * NUM_BLOCKS
        self.published: set[bytes] = set()

    # --- calls ---

    @rule(count=st.integers(0, NUM_BLOCKS + 1))
    def allocate(self, count: int) -> None:
        self._given(self.pool.allocate(count), count, self.tables.append)

    @rule(hashes=st.lists(st.sampled_from([*HASHES, None]), min_size=1, max_size=4))
    def begin_pull(self, hashes: list[bytes | None]) -> None:
        cache = self.pool.cache
        wanted: list[bytes | None] = [
            name for name in dict.fromkeys(hashes) if not name or not cache.find_pulling(name)
        ]
        self._given(self.pool.begin_pull(wanted), len(wanted), self.importing.extend)

    @precondition(lambda self: self._readable())
    @rule(data=st.data())
    def share(self, data: Any) -> None:
        table = data.draw(st.lists(st.sampled_from(self._readable()), min_size=1, max_size=3, unique=True))
        self.pool.share(table)
        self.tables.append(table)

    @precondition(lambda self: self.importing)
    @rule(data=st.data())
    def await_import(self, data: Any) -> None:
        table = [data.draw(st.sampled_from(self.importing))]
        self.pool.share(table)
        self.tables.append(table)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: Any) -> None:
        self.pool.release(self._take(data, self.tables))

    @precondition(lambda self: self._readable())
    @rule(data=st.data())
    def lease(self, data: Any) -> None:
        blocks = data.draw(st.lists(st.sampled_from(self._readable()), min_size=1, max_size=3, unique=True))
        self.pool.lease(blocks)
        self.leases.append(blocks)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def end_lease(self, data: Any) -> None:
        self.pool.end_lease(self._take(data, self.leases))

    @precondition(lambda self: self._owned())
    @rule(data=st.data(), name=st.sampled_from(HASHES))
    def publish(self, data: Any, name: bytes) -> None:
        self.pool.publish(data.draw(st.sampled_from(self._owned())), name)
        self.published.add(name)

    @precondition(lambda self: self.importing)
    @rule(data=st.data())
    def verify(self, data: Any) -> None:
        block_id = self._take(data, self.importing)
        name = self.pool._pull_hashes[block_id]
        self.pool.verify(block_id)
        if name is not None:
            self.published.add(name)

    @precondition(lambda self: self._unawaited())
    @rule(data=st.data(), is_safe=st.booleans())
    def give_up(self, data: Any, is_safe: bool) -> None:
        block_id = data.draw(st.sampled_from(self._unawaited()))
        self.importing.remove(block_id)
        if is_safe:
            self.pool.discard(block_id)
        else:
            self.pool.quarantine(block_id)
            self.quarantined.append(block_id)

    @precondition(lambda self: self.quarantined)
    @rule(data=st.data())
    def fence(self, data: Any) -> None:
        self.pool.fence(self._take(data, self.quarantined))

    @rule()
    def forget_cached(self) -> None:
        num_free, num_cached = self.pool.num_free, self.pool.num_cached
        assert self.pool.forget_cached() == num_cached
        assert (self.pool.num_free, self.pool.num_cached) == (num_free + num_cached, 0)

    # --- what must hold ---

    @invariant()
    def every_block_is_counted_once(self) -> None:
        pool = self.pool
        assert pool.num_free + pool.num_cached + pool.num_used == NUM_BLOCKS
        used = {*self._owned(), *self.importing, *self.quarantined, *(b for one in self.leases for b in one)}
        assert pool.num_used == len(used)

    @invariant()
    def parts_agree(self) -> None:
        self.pool.check_invariants()

    @invariant()
    def states_follow_from_references(self) -> None:
        held = {block_id for lease in self.leases for block_id in lease}
        for block_id in range(NUM_BLOCKS):
            assert self.pool.state(block_id) in self._expected(block_id, held), block_id

    @invariant()
    def only_published_content_is_findable_and_only_in_readable_blocks(self) -> None:
        for name in self.pool.cache.snapshot().stored:
            block_id = self.pool.cache.find(name)
            assert block_id is not None
            assert name in self.published
            assert self.pool.is_valid(block_id)

    @invariant()
    def a_writable_block_has_one_owner(self) -> None:
        owners = [block_id for table in self.tables for block_id in table]
        for block_id in range(NUM_BLOCKS):
            if self.pool.is_writable(block_id):
                assert owners.count(block_id) == 1

    def teardown(self) -> None:
        for block_id in self.importing:
            self.pool.verify(block_id)
        for table in self.tables:
            self.pool.release(table)
        for lease in self.leases:
            self.pool.end_lease(lease)
        for block_id in self.quarantined:
            self.pool.fence(block_id)
        assert self.pool.num_available == NUM_BLOCKS
        self.pool.check_invariants()

    # --- books ---

    def _given(self, blocks: list[int] | None, count: int, keep: Any) -> None:
        if blocks is None:
            assert count > self.pool.num_available
            return
        assert len(set(blocks)) == count
        in_use = {
            *self._owned(),
            *self.importing,
            *self.quarantined,
            *(b for one in self.leases for b in one),
        }
        assert not in_use & set(blocks)
        for block_id in blocks:
            assert self.pool.generation(block_id) == self.generations[block_id] + 1
            self.generations[block_id] += 1
        keep(blocks)

    def _owned(self) -> list[int]:
        """Blocks of some table that are not being imported."""
        return sorted({b for table in self.tables for b in table} - set(self.importing))

    def _readable(self) -> list[int]:
        return [block_id for block_id in range(NUM_BLOCKS) if self.pool.state(block_id) in READABLE]

    def _unawaited(self) -> list[int]:
        awaited = {block_id for table in self.tables for block_id in table}
        return [block_id for block_id in self.importing if block_id not in awaited]

    def _expected(self, block_id: int, held: set[int]) -> tuple[BlockState, ...]:
        if block_id in self.importing:
            return (BlockState.PULLING,)
        if block_id in self.quarantined:
            return (BlockState.QUARANTINED,)
        if block_id in self._owned():
            return (BlockState.ACTIVE,)
        return (BlockState.HELD,) if block_id in held else (BlockState.CACHED, BlockState.FREE)

    @staticmethod
    def _take(data: Any, items: list[Any]) -> Any:
        return items.pop(data.draw(st.integers(0, len(items) - 1)))


BlockPoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBlockPool = BlockPoolMachine.TestCase
