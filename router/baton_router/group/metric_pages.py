"""The metrics of several processes as one page: every sample has the number of its process as a label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LABEL: Final = "router_process"


def merge_pages(pages: Mapping[int, str]) -> str:
    """Return one page in Prometheus' text format; a family's samples of all processes stand together."""
    families: dict[str, tuple[list[str], list[str]]] = {}
    heads: list[str] = []
    samples: list[str] = []
    for process, page in pages.items():
        for line in page.splitlines():
            if line.startswith("# HELP "):
                heads, samples = families.setdefault(line.split(" ", 3)[2], ([], []))
            if not line.startswith("#"):
                samples.append(_labelled(line, process))
            elif line not in heads:
                heads.append(line)
    lines = (line for heads, samples in families.values() for line in (*heads, *samples))
    return "\n".join((*lines, ""))


def _labelled(sample: str, process: int) -> str:
    name, brace, rest = sample.partition("{")
    if brace:
        return f'{name}{{{LABEL}="{process}",{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{{LABEL}="{process}"}} {value}'
