"""Dashboards and alerts: expressions that parse, metrics that exist, alerts that fire when they should."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import promql_parser
import pytest
import yaml

from baton_router.metrics import router_metrics
from baton_service.exposition import Kind
from baton_worker import worker_metrics
from tests.deploy.expressions import RULES, expressions, metric_names
from tools.k8s.dashboards import BOARDS, FOLDER, board_json
from tools.k8s.manifests import ROOT
from tools.k8s.programs import find_program

needs_promtool = pytest.mark.skipif(
    find_program("promtool") is None, reason="promtool is not there: python -m tools.k8s.programs fetches it"
)
OF_PROCESSES: Final = {"process_resident_memory_bytes", "process_cpu_seconds_total"}
SUFFIXES: Final = {
    Kind.GAUGE: ("",),
    Kind.COUNTER: ("_total",),
    Kind.HISTOGRAM: ("_bucket", "_count", "_sum"),
}


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("board", BOARDS, ids=[board.name for board in BOARDS])
def test_a_dashboard_is_what_the_script_writes(board: Any) -> None:
    text = board_json(board)
    assert text == (FOLDER / f"{board.name}.json").read_text()
    made = json.loads(text)
    assert made["uid"] == f"baton-{board.name}"
    assert {one["name"] for one in made["templating"]["list"]} == {"datasource", "namespace"}
    ids = [panel["id"] for panel in made["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in made["panels"]:
        targets = [target["refId"] for target in panel.get("targets", ())]
        assert len(set(targets)) == len(targets)


def test_every_expression_parses() -> None:
    found = expressions()
    assert len(found) > 70
    for expression in found:
        promql_parser.parse(expression)


def test_every_metric_is_one_that_a_router_or_a_worker_exposes() -> None:
    """tests/e2e/test_revisions.py compares them with what running processes expose."""
    families = (*router_metrics.FAMILIES, *worker_metrics.FAMILIES)
    exposed = {f"{one.name}{suffix}" for one in families for suffix in SUFFIXES[one.kind]} | OF_PROCESSES
    assert metric_names() - exposed == set()


def test_every_alert_has_a_page_that_says_what_to_do() -> None:
    pages = set()
    for alert in alerts():
        page = ROOT / alert["annotations"]["runbook_url"]
        pages.add(page)
        text = page.read_text()
        assert text.startswith(f"# {alert['alert']}\n")
        for heading in ("## What it means", "## Find the cause", "## What to do"):
            assert heading in text
    assert pages == set((ROOT / "docs/runbooks").glob("*.md")) - {ROOT / "docs/runbooks/index.md"}
    index = (ROOT / "docs/runbooks/index.md").read_text()
    assert all(f"]({page.name})" in index for page in pages)


@needs_promtool
def test_alerts_fire_and_rest_as_their_tests_say() -> None:
    file = Path(__file__).parent / "alert_tests.yaml"
    tested = {
        one["alertname"]
        for test in yaml.safe_load(file.read_text())["tests"]
        for one in test["alert_rule_test"]
    }
    assert tested == {alert["alert"] for alert in alerts()}
    command = (str(find_program("promtool")), "test", "rules", str(file))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
