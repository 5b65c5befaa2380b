"""Tables of steps name the lines of their functions, and the files below a heading are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.way_tables import TOLERANCE, files_of, is_true, with_lines

ROW = "| first | `part/one.py`:{} | `Owner.take`, `give` |"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "part").mkdir()
    (tmp_path / "part/one.py").write_text(
        "class Owner:\n    def take(self): ...\n\n\nasync def give(): ...\n", encoding="utf-8"
    )
    return tmp_path


@pytest.mark.parametrize("stale", ["", "7", "7, 8"])
def test_lines_are_those_of_the_code(root: Path, stale: str) -> None:
    text = "## Way\n\n| step | file | function |\n|---|---|---|\n{}\n"
    row = ROW.format(stale) if stale else ROW.replace(":{}", "")
    assert with_lines(text.format(row), root) == text.format(ROW.format("2, 5"))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [("2, 5", True), (f"2, {5 + TOLERANCE}", True), (f"2, {6 + TOLERANCE}", False), ("2", False)],
)
def test_a_table_is_true_while_its_lines_are_near(root: Path, lines: str, expected: bool) -> None:
    assert is_true(ROW.format(lines), root) is expected


def test_a_function_that_is_gone_is_an_error(root: Path) -> None:
    with pytest.raises(KeyError, match="keep"):
        with_lines("| first | `part/one.py` | `Owner.keep` |", root)


def test_files_are_counted_once_and_below_their_heading() -> None:
    others = ("| second | `part/two.py`:3 | `go` |", "## B", "", "| other | `part/three.py`:4 | `stay` |")
    text = "\n".join(["# Page", "", "## A", "", ROW, ROW, *others, ""])
    assert files_of(text, "A") == ["part/one.py", "part/two.py"]
