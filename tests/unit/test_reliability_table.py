"""Every failure that docs/reliability.md lists names tests, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
DOCUMENT: Final = ROOT / "docs" / "reliability.md"
LINK: Final = re.compile(r"\[`(test_\w+)`\]\(\.\./(tests/[\w/]+\.py)\)")
TEXT: Final = DOCUMENT.read_text(encoding="utf-8")
ROWS: Final = re.findall(r"^\| \d+ \| .*\|$", TEXT, re.MULTILINE)
NUM_FAILURES: Final = 26
WITH_PROCESSES: Final = {1, 2, 4, 6, 9, 10, 12, 15, 16, 18, 20, 21, 23}
"""Rows that have to be shown with real processes, too."""


@cache
def names_in(file: str) -> frozenset[str]:
    """Names of the test functions of a file, those of classes included."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


def test_every_row_is_there_in_order() -> None:
    assert [int(row.split("|")[1]) for row in ROWS] == list(range(1, NUM_FAILURES + 1))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_a_row_names_its_tests(row: str) -> None:
    _, number, _, _, shown_by, with_processes, _ = row.split("|")
    assert LINK.search(shown_by)
    assert bool(LINK.search(with_processes)) == (int(number) in WITH_PROCESSES)


def test_every_test_that_is_named_exists() -> None:
    assert [f"{file}::{name}" for name, file in LINK.findall(TEXT) if name not in names_in(file)] == []
