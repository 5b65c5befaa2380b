"""The results of a comparison, and their table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.peer.figures import BASE, MEASURES, TARGETS, Limits, Weights, ratio, share_of_limit
from bench.peer.scenarios import Scenario

HEAD = ("scenario", "figure", "engine", "median (lowest to highest)", "Baton is better by", "of the limit")


@dataclass(slots=True, kw_only=True)
class Results:
    """Figures of all runs, in the order of the rounds."""

    limits: list[Limits] = field(default_factory=list)
    values: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)
    """Values by scenario, figure and engine."""
    agreements: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """Shares of requests with the tokens that `BASE` gave, by scenario and engine."""

    def add(self, scenario: str, engine: str, figures: dict[str, float]) -> None:
        for measure, value in figures.items():
            by_engine = self.values.setdefault(scenario, {}).setdefault(measure, {})
            by_engine.setdefault(engine, []).append(value)

    def best_limits(self) -> Limits:
        """The most that the machine did in any of the measurements."""
        return Limits(
            bytes_per_s=max(each.bytes_per_s for each in self.limits),
            flops=max(each.flops for each in self.limits),
        )

    def as_json(self) -> dict[str, Any]:
        limits = [asdict(each) for each in self.limits]
        return {"limits": limits, "values": self.values, "same_tokens": self.agreements}


def table(results: Results, scenarios: dict[str, Scenario], weights: Weights) -> str:
    """Lay out all figures as a table of Markdown."""
    rows = [HEAD, *_rows(results, scenarios, weights)]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)


def _rows(results: Results, scenarios: dict[str, Scenario], weights: Weights) -> Iterator[tuple[str, ...]]:
    limits = results.best_limits()
    for name, by_measure in results.values.items():
        for measure in MEASURES:
            for engine, values in by_measure.get(measure, {}).items():
                share = None
                if name in scenarios:
                    median = statistics.median(values)
                    share = share_of_limit(scenarios[name], measure, median, weights, limits)
                yield (
                    name,
                    MEASURES[measure].title,
                    engine,
                    _spread(measure, values),
                    _comparison(name, measure, engine, by_measure[measure]),
                    "" if share is None else f"{share:.0%}",
                )


def _spread(measure: str, values: Sequence[float]) -> str:
    how = MEASURES[measure]
    shown = [
        f"{value * how.scale:{how.digits}}" for value in (statistics.median(values), min(values), max(values))
    ]
    return f"{shown[0]} ({shown[1]} to {shown[2]})" if len(values) > 1 else shown[0]


def _comparison(name: str, measure: str, engine: str, by_engine: dict[str, list[float]]) -> str:
    """Return by how much `BASE` is better, and whether it meets its target."""
    if engine == BASE or BASE not in by_engine:
        return ""
    reached = ratio(measure, by_engine[BASE], by_engine[engine])
    target = TARGETS.get((name, measure), {}).get(engine)
    if target is None:
        return f"{reached:.2f}"
    return f"{reached:.2f} ({'reaches' if reached >= target else 'misses'} {target:g})"
