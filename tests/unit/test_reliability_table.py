"""Every failure that docs/reliability.md lists names tests, and every test that it names exists."""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.documented_tests import LINK, missing_tests, text_of

TEXT: Final = text_of("reliability.md")
ROWS: Final = re.findall(r"^\| \d+ \| .*\|$", TEXT, re.MULTILINE)
NUM_FAILURES: Final = 26
WITH_PROCESSES: Final = {1, 2, 4, 6, 9, 10, 12, 15, 16, 18, 20, 21, 23}
"""Rows that have to be shown with real processes, too."""


def test_every_row_is_there_in_order() -> None:
    assert [int(row.split("|")[1]) for row in ROWS] == list(range(1, NUM_FAILURES + 1))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_a_row_names_its_tests(row: str) -> None:
    _, number, _, _, shown_by, with_processes, _ = row.split("|")
    assert LINK.search(shown_by)
    assert bool(LINK.search(with_processes)) == (int(number) in WITH_PROCESSES)


def test_every_test_that_is_named_exists() -> None:
    assert missing_tests(TEXT) == []
