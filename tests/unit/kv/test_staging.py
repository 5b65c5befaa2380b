from __future__ import annotations

import numpy as np
import pytest

from baton_kv.pull_chunks import CHUNK_BYTES
from baton_kv.staging import MAX_LENT, NUM_BUFFERS, Staging


class Owner:
    """Counts the buffers it makes and the returns it is told of."""

    def __init__(self) -> None:
        self.num_made = 0
        self.num_returns = 0
        self.staging = Staging(self.make, self.note)

    def make(self, num_bytes: int) -> np.ndarray:
        self.num_made += 1
        return np.zeros(num_bytes, np.uint8)

    def note(self) -> None:
        self.num_returns += 1


@pytest.fixture
def owner() -> Owner:
    return Owner()


def test_a_buffer_comes_back_with_the_last_view_of_it(owner: Owner) -> None:
    view = owner.staging.lend(b"a", 100)
    assert len(view) == 100
    rows = np.frombuffer(view, np.uint8).reshape(4, 25)
    del view
    assert (owner.num_returns, owner.staging.num_lent) == (0, 1)
    del rows
    assert owner.num_returns == 1
    assert owner.staging.can_lend(b"a")
    assert owner.staging.num_lent == 0


def test_buffers_are_reused(owner: Owner) -> None:
    for _ in range(100):
        owner.staging.lend(b"a", CHUNK_BYTES)
        assert owner.staging.can_lend(b"a")
    assert owner.num_made == 1
    assert owner.staging.num_bytes == CHUNK_BYTES


def test_one_puller_gets_a_few_and_leaves_the_rest_to_others(owner: Owner) -> None:
    views = []
    while owner.staging.can_lend(b"slow"):
        views.append(owner.staging.lend(b"slow", 1))
    assert len(views) == MAX_LENT
    assert owner.staging.can_lend(b"other")


def test_while_five_pullers_return_nothing_a_sixth_gets_a_buffer_and_then_a_seventh_none(
    owner: Owner,
) -> None:
    views = []
    for consumer in (b"1", b"2", b"3", b"4", b"5", b"6"):
        assert owner.staging.can_lend(consumer)
        while owner.staging.can_lend(consumer):
            views.append(owner.staging.lend(consumer, 1))
    assert len(views) == NUM_BUFFERS
    assert not owner.staging.can_lend(b"7")
    views.pop()
    assert owner.staging.can_lend(b"7")


def test_of_many_pullers_that_take_turns_the_last_one_gets_a_buffer(owner: Owner) -> None:
    views = []
    consumers = [bytes([number]) for number in range(NUM_BUFFERS - 1)]
    for _ in range(MAX_LENT):
        for consumer in consumers:
            if owner.staging.can_lend(consumer):
                views.append(owner.staging.lend(consumer, 1))
    assert len(views) == NUM_BUFFERS - 1
    assert not any(map(owner.staging.can_lend, consumers))
    assert owner.staging.can_lend(b"another")
    assert owner.staging.num_bytes < NUM_BUFFERS * CHUNK_BYTES
