"""Modules, commands, servers and examples of vLLM's documentation, in processes where `vllm` is Baton."""

from __future__ import annotations

import pytest

from tools.vllm_audit.__main__ import unexplained, verdicts_of
from tools.vllm_audit.groups import GROUPS
from tools.vllm_audit.page import PAGE, group_row
from tools.vllm_audit.verdict import Group

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    "group", [one for one in GROUPS if one.starts_processes], ids=lambda group: group.title
)
def test_no_item_is_missing_or_differs_without_a_decision(group: Group) -> None:
    verdicts = verdicts_of([group])
    assert unexplained(verdicts) == []
    row = group_row(verdicts[0].group, verdicts)
    assert row in PAGE.read_text(encoding="utf-8").splitlines(), "run: python -m tools.vllm_audit --write"
