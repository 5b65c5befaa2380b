"""The earliest of many deadlines, against a plain minimum."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from baton_router.core.flow.deadlines import Deadlines

NAMES = st.sampled_from("abcdef")
CHANGES = st.lists(st.tuples(NAMES, st.none() | st.integers(0, 9)), max_size=200)


@given(CHANGES, st.integers(0, 9))
def test_next_and_due_are_those_of_a_plain_table(changes: list[tuple[str, int | None]], now: int) -> None:
    deadlines, table = Deadlines(), {}
    for name, deadline in changes:
        if deadline is None:
            deadlines.drop(name)
            table.pop(name, None)
        else:
            deadlines.set(name, deadline)
            table[name] = deadline
        assert deadlines.next() == min(table.values(), default=None)
    assert len(deadlines) == len(table)
    due = deadlines.due(now)
    assert sorted(due) == sorted(name for name, deadline in table.items() if deadline <= now)
    assert [table[name] for name in due] == sorted(table[name] for name in due)


def test_replaced_deadlines_do_not_pile_up() -> None:
    deadlines = Deadlines()
    for number in range(10_000):
        deadlines.set("a", float(number))
    assert len(deadlines._heap) < 32
    assert deadlines.next() == 9_999.0
