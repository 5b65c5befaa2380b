"""The table of docs/models.md, and the command that writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models import VARIANTS
from tools.model_matrix import CHUNKED, TABLE, Case, compare


def test_the_table_lists_every_variant_in_every_way_and_all_are_equal() -> None:
    rows = TABLE.read()
    assert list(rows) == [(f"`{variant}`",) for variant in VARIANTS]
    assert {cell for row in rows.values() for cell in row[1:]} == {"= = = ="}


@pytest.mark.slow
@pytest.mark.parametrize(("is_wrong", "signs"), [(False, "=="), (True, "≠≠")])
def test_a_comparison_tells_equal_tokens_from_others(is_wrong: bool, signs: str, tmp_path: Path) -> None:
    case = Case.draw(tmp_path / "model", "llama")
    if is_wrong:
        case.jobs[-1].expected[0][-1] += 1
    assert compare(case, "torch", "in_process", CHUNKED) == signs
