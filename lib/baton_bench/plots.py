"""Figures of benchmarks as pictures; needs the extra `simulate`, which `require_plots` looks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from baton_bench.figures import Figures, percentile

_MARKED: Final = (50.0, 90.0, 99.0)
_BINS: Final = 60


def plot_distributions(path: Path, latencies_ms: Mapping[str, Sequence[float]], title: str) -> None:
    """Draw how TTFT and ITL are distributed, with their percentiles.

    Args:
        latencies_ms: every value, by the names of `figures.LATENCIES`.
    """
    figure, panels = _figure(title, 2)
    for axes, name in zip(panels, ("ttft", "itl"), strict=True):
        ordered = sorted(latencies_ms[name])
        axes.hist(ordered, bins=_BINS, histtype="stepfilled", log=name == "itl" and bool(ordered))
        for percent, color in zip(_MARKED, ("tab:green", "tab:orange", "tab:red"), strict=True):
            value = percentile(ordered, percent)
            axes.axvline(value, color=color, label=f"p{percent:g}: {value:.1f} ms")
        axes.set_xlabel(f"{name.upper()}, ms")
        axes.set_ylabel("requests" if name == "ttft" else "pieces of answers")
        axes.legend()
    figure.savefig(path)


def plot_sweep(path: Path, points: Sequence[tuple[str, Figures]], title: str) -> None:
    """Draw throughput against latency, and goodput or, without limits, throughput against what was asked."""
    figure, (throughput, goodput) = _figure(title, 2)
    for name in ("ttft", "tpot"):
        throughput.plot(
            [one.latencies[name].median for _, one in points],
            [one.output_throughput for _, one in points],
            marker="o",
            label=f"median {name.upper()}",
        )
    throughput.set_xscale("symlog")
    throughput.set_xlabel("ms")
    throughput.set_ylabel("output tokens per second")
    throughput.legend()
    places = range(len(points))
    goodput.plot(places, [one.request_throughput for _, one in points], marker="o", label="throughput")
    if all(one.request_goodput is not None for _, one in points):
        goodput.plot(places, [one.request_goodput for _, one in points], marker="s", label="goodput")
    goodput.set_xticks(list(places), [name for name, _ in points], rotation=45, ha="right", fontsize=8)
    goodput.set_ylabel("requests per second")
    goodput.legend()
    figure.savefig(path)


def _figure(title: str, num_panels: int) -> tuple[Any, Any]:
    # An extra that tables do without.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=9, wrap=True)
    return figure, figure.subplots(1, num_panels)
