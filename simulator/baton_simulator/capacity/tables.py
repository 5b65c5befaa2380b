"""Figures as tables: in markdown, aligned for a reader of the source as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from baton_simulator.capacity.figures import Figures, Latency

_Cell = Callable[[Figures], str]


def _milliseconds(of: Callable[[Figures], Latency], name: str, form: str = ".0f") -> _Cell:
    def cell(figures: Figures) -> str:
        latency = of(figures)
        return format(getattr(latency, f"{name}_s") * 1e3, form) if latency.num_answers else "-"

    return cell


_SERVED: Final[Mapping[str, _Cell]] = {
    "requests": lambda f: str(f.num_requests),
    "failed": lambda f: str(f.num_failed),
    "goodput, 1/s": lambda f: format(f.goodput_per_s, ".2f"),
    "in SLO, %": lambda f: format(f.attainment * 100, ".1f"),
    "tokens/s": lambda f: format(f.tokens_per_s, ".0f"),
    "hits, %": lambda f: format(f.hit_rate * 100, ".1f"),
    "split, %": lambda f: format(f.split_share * 100, ".0f"),
    "busy": lambda f: " ".join(f"{letter} {share:.0%}" for letter, share in f.busy.items()),
}
_LATENCIES: Final[Mapping[str, Callable[[Figures], Latency]]] = {
    "TTFT": lambda f: f.ttft,
    "TPOT": lambda f: f.tpot,
    "E2E": lambda f: f.e2e,
}


def figures_tables(rows: Mapping[str, Figures]) -> str:
    """Two tables of the same rows: who was served, and how fast, if anyone was."""
    speeds = {
        f"{name} {part}, ms": _milliseconds(of, part, ".1f" if name == "TPOT" else ".0f")
        for name, of in _LATENCIES.items()
        for part in ("mean", "p50", "p90", "p99")
    }
    return "\n\n".join(_of(rows, columns) for columns in (_SERVED, speeds))


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    ruler = ["-" * (width - 1) + ":" for width in widths]
    ruler[0] = "-" * widths[0]
    lines = [headers, ruler, *rows]
    return "\n".join(
        "| " + " | ".join(
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ) + " |"
        for line in lines
    )  # fmt: skip


def _of(rows: Mapping[str, Figures], columns: Mapping[str, _Cell]) -> str:
    cells = [[name, *(cell(figures) for cell in columns.values())] for name, figures in rows.items()]
    return table(["", *columns], cells)
