"""Renders the chart, and reads what was rendered.

    python -m tools.k8s.manifests

writes the rendered examples of deploy/helm/examples to tests/deploy/golden, and the manifests of
deploy/k8s/base, which are the minimal example without Helm's labels.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tools.k8s.programs import find_program

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "deploy/helm/baton"
EXAMPLES: Final = tuple(sorted((ROOT / "deploy/helm/examples").glob("*.yaml")))
GOLDEN: Final = ROOT / "tests/deploy/golden"
BASE: Final = ROOT / "deploy/k8s/base/baton.yaml"
RELEASE: Final = "demo"
_WITHIN_S: Final = 60.0
_HELMS_LABELS: Final = ("helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/instance")

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a pod template, with the names of the objects around it."""

    owner: str
    """Name of the Deployment or LeaderWorkerSet."""
    spec: Mapping[str, Any]
    pod: Mapping[str, Any]

    @property
    def command(self) -> list[str]:
        return [*self.spec["command"], *self.spec["args"]]

    def command_with(self, variables: Mapping[str, str]) -> list[str]:
        """Return the command as a kubelet would expand it."""
        return [_expanded(word, variables) for word in self.command]


def run_helm(*arguments: str) -> str:
    """Return what helm prints.

    Raises:
        ValueError: it refuses; with its reason.
    """
    helm = find_program("helm")
    assert helm is not None, "callers look for helm first"
    done = subprocess.run(
        (str(helm), *arguments), capture_output=True, text=True, timeout=_WITHIN_S, check=False
    )
    if done.returncode:
        raise ValueError(done.stderr)
    return done.stdout


def render(values: Path | None = None, *options: str) -> str:
    """Return the chart's manifests.

    Raises:
        ValueError: the values are refused.
    """
    files = ("--values", str(values)) if values is not None else ()
    return run_helm("template", RELEASE, str(CHART), "--namespace", "baton", *files, *options)


def read_manifests(text: str) -> list[Manifest]:
    """Return the objects of a file."""
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]


def pod_templates(manifest: Manifest) -> list[Manifest]:
    """Return the templates of pods in an object."""
    spec = manifest.get("spec", {})
    match manifest["kind"]:
        case "Deployment":
            return [spec["template"]]
        case "LeaderWorkerSet":
            template = spec["leaderWorkerTemplate"]
            return [template["leaderTemplate"], template["workerTemplate"]]
        case _:
            return []


def containers(manifests: Sequence[Manifest]) -> Iterator[Container]:
    """Return the containers that run Baton."""
    for manifest in manifests:
        for template in pod_templates(manifest):
            for spec in template["spec"]["containers"]:
                yield Container(manifest["metadata"]["name"], spec, template["spec"])


def plain(manifests: Sequence[Manifest]) -> list[Manifest]:
    """Return the objects without the labels that only Helm needs."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(one) for key, one in value.items() if key not in _HELMS_LABELS}
        return [without(one) for one in value] if isinstance(value, list) else value

    return [without(manifest) for manifest in manifests]


def base_text() -> str:
    """Return the manifests of deploy/k8s/base."""
    text = run_helm("template", "baton", str(CHART), "--set", "revision=base")
    kept = [one for one in read_manifests(text) if one["kind"] != "PodDisruptionBudget"]
    head = "# Written by `python -m tools.k8s.manifests` from the chart: change that.\n"
    return head + yaml.safe_dump_all(plain(kept), sort_keys=False, width=120)


def main() -> int:
    GOLDEN.mkdir(exist_ok=True)
    BASE.parent.mkdir(parents=True, exist_ok=True)
    for example in EXAMPLES:
        (GOLDEN / example.name).write_text(render(example))
    BASE.write_text(base_text())
    return 0


def _expanded(word: str, variables: Mapping[str, str]) -> str:
    for name, value in variables.items():
        word = word.replace(f"$({name})", value)
    return word


if __name__ == "__main__":
    sys.exit(main())
