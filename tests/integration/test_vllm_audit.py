"""Items of vLLM's documentation that need no processes: none is missing, or different without a decision."""

from __future__ import annotations

import pytest

from tools.vllm_audit.__main__ import unexplained, verdicts_of
from tools.vllm_audit.groups import GROUPS
from tools.vllm_audit.page import PAGE, group_row
from tools.vllm_audit.verdict import Verdict


@pytest.fixture(scope="module")
def verdicts() -> list[Verdict]:
    return verdicts_of(group for group in GROUPS if not group.starts_processes)


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_no_item_is_missing_or_differs_without_a_decision(verdicts: list[Verdict]) -> None:
    assert unexplained(verdicts) == []


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_the_page_tells_the_same(verdicts: list[Verdict]) -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    titles = dict.fromkeys(one.group for one in verdicts)
    rows = [group_row(title, [one for one in verdicts if one.group == title]) for title in titles]
    assert [row for row in rows if row not in lines] == [], "run: python -m tools.vllm_audit --write"
