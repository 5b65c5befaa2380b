"""Which blocks a sequence needs, in blocks of 4 tokens: full groups, groups with a window, both."""

from __future__ import annotations

import pytest

from baton_core.kv_layout.paging import Paging, Place

FULL = Paging(block_size=4)
WINDOW = Paging(block_size=4, windows=(6,))
MIXED = Paging(block_size=4, windows=(None, 6))


def test_a_table_has_an_entry_for_every_block_begun() -> None:
    assert [FULL.num_entries(n) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_the_first_visible_block_is_that_of_the_oldest_token_in_the_window() -> None:
    assert [WINDOW.first_visible(0, position) for position in (0, 5, 8, 9, 12, 13)] == [0, 0, 0, 1, 1, 2]
    assert MIXED.first_visible(0, 1000) == 0


def test_a_window_of_one_token_needs_nothing_before_it() -> None:
    alone = Paging(block_size=4, windows=(1,))
    assert [alone.first_visible(0, position) for position in (3, 4, 5)] == [0, 1, 1]
    assert [alone.num_blocks(n) for n in (3, 4, 5)] == [1, 0, 1]


def test_a_computed_prompt_keeps_all_blocks_of_full_groups_and_the_last_of_the_others() -> None:
    assert [FULL.num_blocks(n) for n in (4, 21)] == [1, 6]
    assert [WINDOW.num_blocks(n) for n in (4, 20, 21)] == [1, 2, 2]
    assert MIXED.num_blocks(21) == 6 + 2


def test_places_are_numbered_through_the_tables_laid_end_to_end() -> None:
    assert FULL.prompt_places(9) == [Place(0, 0, 0), Place(1, 0, 1), Place(2, 0, 2)]
    assert MIXED.prompt_places(14) == [
        *(Place(index, 0, index) for index in range(4)),
        *(Place(4 + index, 1, index) for index in (2, 3)),
    ]


def test_a_window_bounds_the_blocks_of_a_sequence_however_long() -> None:
    assert [FULL.max_blocks(n, 8) for n in (8, 9, 4000)] == [2, 3, 1000]
    assert [WINDOW.max_blocks(n, 8) for n in (8, 24, 4000, 400_000)] == [2, 6, 6, 6]
    assert MIXED.max_blocks(4000, 8) == 1000 + 6


@pytest.mark.parametrize("paging", [FULL, WINDOW, MIXED])
@pytest.mark.parametrize("num_blocks", [1, 2, 7, 12])
def test_the_longest_sequence_of_a_pool_is_the_last_that_fits(paging: Paging, num_blocks: int) -> None:
    longest = paging.max_tokens(num_blocks, 8, limit=100)
    fits = [length for length in range(1, 101) if paging.max_blocks(length, 8) <= num_blocks]
    assert longest == max(fits, default=0)


def test_reach_ahead_is_the_whole_prompt_in_full_groups_and_a_window_and_chunk_in_others() -> None:
    def reach(num_computed: int, num_cached: int = 0) -> tuple[int, ...]:
        return MIXED.reach_ahead(
            400, num_cached_tokens=num_cached, num_computed_tokens=num_computed, max_chunk=8
        )

    assert [reach(computed) for computed in (0, 8, 16, 24)] == [(100, 4), (100, 4), (100, 6), (100, 8)]
    assert reach(392) == (100, 100)
    assert [reach(computed, num_cached=16) for computed in (16, 20, 24)] == [(100, 8), (100, 8), (100, 8)]


@pytest.mark.parametrize(
    ("paging", "groups", "length"),
    [
        (FULL, ("xxxx",), 4),
        (FULL, ("xx.x",), 2),
        (FULL, (".xxx",), 0),
        (WINDOW, ("..xx",), 4),
        (WINDOW, ("x.x.",), 1),
        (WINDOW, (".x.x",), 0),
        (MIXED, ("xxxx", "..xx"), 4),
        (MIXED, ("xxx.", "..xx"), 0),
        (MIXED, ("xxx.", ".xxx"), 3),
        (MIXED, ("xxxx", "xx.."), 2),
        (MIXED, ("xxxx", "...."), 0),
    ],
)
def test_the_longest_prefix_has_what_the_next_token_sees_in_every_group(
    paging: Paging, groups: tuple[str, ...], length: int
) -> None:
    assert paging.longest_prefix(4, lambda group, index: groups[group][index] == "x") == length
