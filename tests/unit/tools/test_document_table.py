"""The tables of docs/models.md that are written row by row."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.quantized_reference import CHECKPOINTS
from tools import document_table
from tools.document_table import DocumentTable
from tools.quantized_matrix import REFUSED, TABLE


def test_the_table_of_quantized_checkpoints_is_whole_and_all_are_equal() -> None:
    rows = TABLE.read()
    assert list(rows) == [(f"`{name}`",) for name in CHECKPOINTS]
    assert {cell for row in rows.values() for cell in row[3:]} == {"== ==", "==", REFUSED}


def test_a_row_takes_the_place_of_its_key_in_the_order_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = tmp_path / "models.md"
    marks = [f"<!-- written by tools/sizes.py: {which} -->" for which in ("begin", "end")]
    document.write_text("\n".join(["before", *marks, "after"]))
    monkeypatch.setattr(document_table, "DOCUMENT", document)
    table = DocumentTable(tool="sizes", heading=["model", "size", "sign"], keys=[("a", "1"), ("b", "")])
    for row in (["b", "", "="], ["a", "1", "="], ["b", "", "≠"]):
        table.write(row)
    assert table.read() == {("a", "1"): ["a", "1", "="], ("b", ""): ["b", "", "≠"]}
    text = document.read_text()
    assert text.startswith("before\n<!--")
    assert text.endswith("-->\nafter")
    assert "| a | 1 | = |\n| b |  | ≠ |\n" in text
    other = DocumentTable(tool="sizes", heading=["model", "size", "signs"], keys=table.keys)
    assert other.read() == {}
