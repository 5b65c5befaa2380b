"""The table of docs/models.md, and the command that writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models import VARIANTS
from tools.model_matrix import (
    ARRANGEMENTS,
    CHUNKED,
    DIFFERENT,
    DOCUMENT,
    KERNELS,
    Case,
    compare,
    fill_document,
    read_table,
    table,
)


def test_the_table_lists_every_variant_in_every_way_and_all_are_equal() -> None:
    cells = read_table(DOCUMENT.read_text())
    assert list(dict.fromkeys(variant for variant, *_ in cells)) == list(VARIANTS)
    assert set(cells) == {(v, k, a) for v in VARIANTS for k in KERNELS for a in ARRANGEMENTS}
    assert set(cells.values()) == {"= = = ="}


def test_a_table_is_read_as_it_was_written() -> None:
    cells = {(v, k, a): f"= = = {DIFFERENT}" for v in ("one", "two") for k in KERNELS for a in ARRANGEMENTS}
    before, after = DOCUMENT.read_text().split("<!--", 1)[0], DOCUMENT.read_text().rsplit("-->", 1)[1]
    document = fill_document(DOCUMENT.read_text(), table(cells))
    assert read_table(document) == cells
    assert document.startswith(before)
    assert document.endswith(after)


@pytest.mark.slow
@pytest.mark.parametrize(("is_wrong", "signs"), [(False, "=="), (True, "≠≠")])
def test_a_comparison_tells_equal_tokens_from_others(is_wrong: bool, signs: str, tmp_path: Path) -> None:
    case = Case.draw(tmp_path / "model", "llama")
    if is_wrong:
        case.jobs[-1].expected[0][-1] += 1
    assert compare(case, "torch", "in_process", CHUNKED) == signs
