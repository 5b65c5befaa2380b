"""The tables of one sequence: what they name, what they give up."""

from __future__ import annotations

from baton_core.blocks.block_tables import BlockTables
from baton_core.kv_layout.paging import NO_BLOCK, Paging

MIXED = Paging(block_size=4, windows=(None, 6))


def make_tables(paging: Paging = MIXED, *tables: list[int]) -> BlockTables:
    made = BlockTables(paging)
    for group, blocks in enumerate(tables):
        made.fill(group, 0, blocks)
    return made


def test_new_tables_are_empty() -> None:
    tables = make_tables()
    assert (bool(tables), tables.num_entries, tables.held(), tables.upto(0)) == (False, 0, [], ((), ()))


def test_tables_are_extended_group_by_group() -> None:
    tables = make_tables(MIXED, [7], [])
    assert tables.num_missing((3, 2)) == 4
    tables.extend((3, 2), [1, 2, 3, 4])
    assert list(tables) == [[7, 1, 2], [3, 4]]
    assert (tables.num_missing((1, 2)), tables.num_entries) == (0, 2)


def test_a_step_sees_the_entries_of_its_tokens_only() -> None:
    tables = make_tables(MIXED, [1, 2, 3], [4, 5, 6])
    assert tables.upto(5) == ((1, 2), (4, 5))


def test_what_left_the_window_is_given_up_once() -> None:
    tables = make_tables(MIXED, [1, 2, 3, 4], [5, 6, 7, 8])
    assert tables.leave(8) == []
    assert tables.leave(13) == [(1, 0, 5), (1, 1, 6)]
    assert tables.leave(13) == []
    assert tables[1] == [NO_BLOCK, NO_BLOCK, 7, 8]
    assert tables[0] == [1, 2, 3, 4]


def test_blocks_are_held_by_position_then_by_group() -> None:
    tables = make_tables(MIXED, [1, 2, 3], [4, 5])
    assert tables.held() == [1, 4, 2, 5, 3]
    tables.leave(9)
    assert tables.held() == [1, 2, 5, 3]


def test_a_cut_returns_the_blocks_behind_it_and_forgets_them() -> None:
    tables = make_tables(MIXED, [1, 2, 3], [4, 5, 6])
    tables.leave(9)
    assert tables.cut(2) == [3, 6]
    assert list(tables) == [[1, 2], [NO_BLOCK, 5]]
    assert tables.cut(0) == [1, 2, 5]
    assert not tables
    tables.fill(1, 1, [9])
    assert tables.held() == [9]


def test_a_copy_changes_on_its_own() -> None:
    tables = make_tables(MIXED, [1, 2, 3], [4, 5, 6])
    tables.leave(9)
    sibling = tables.copy()
    sibling.extend((4, 4), [7, 8])
    sibling.leave(13)
    assert list(tables) == [[1, 2, 3], [NO_BLOCK, 5, 6]]
    assert list(sibling) == [[1, 2, 3, 7], [NO_BLOCK, NO_BLOCK, 6, 8]]
