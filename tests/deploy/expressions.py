"""The expressions of dashboards and alerts, and the metrics that they name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

import yaml

from tools.k8s.dashboards import FOLDER
from tools.k8s.manifests import CHART

RULES: Final = CHART / "files/alerts.yaml"
_VARIABLES: Final = {"$__rate_interval": "5m", "$namespace": "baton"}
_NAME: Final = re.compile(r"\b(?:vllm:|baton_|http_|process_)[a-z0-9_]+")


def expressions() -> list[str]:
    """Return every expression, with Grafana's variables filled in."""
    found = [*_of_alerts(), *_of_dashboards()]
    for name, value in _VARIABLES.items():
        found = [expression.replace(name, value) for expression in found]
    return found


def metric_names() -> set[str]:
    """Return the names of all metrics in them."""
    return {name for expression in expressions() for name in _NAME.findall(expression)}


def _of_alerts() -> Iterator[str]:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


def _of_dashboards() -> Iterator[str]:
    for path in sorted(FOLDER.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                yield target["expr"]
