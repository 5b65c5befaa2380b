"""Figures of benchmarks as pictures; needs the extra `simulate`, which `require_plots` looks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from baton_bench.figures import MARKED_PERCENTS, Figures, percentile
from baton_bench.results import TITLES

_COLORS: Final = ("#0072b2", "#e69f00", "#d55e00")
"""Colors of the marked percentiles; people who see few colors tell them apart."""
_STYLES: Final = ("-", "--", "-.")
_SLO_COLOR: Final = "#8b008b"
_GOODPUT: Final = {
    "color": _SLO_COLOR,
    "linestyle": "--",
    "marker": "s",
    "markersize": 8,
    "markerfacecolor": "none",
}
_BARS: Final = "#b8cfe0"
_BINS: Final = 60
_SHORTEST_MS: Final = 0.01
"""Two pieces that arrive together are drawn this far apart: a logarithmic axis has no 0."""


def plot_distributions(
    path: Path, latencies_ms: Mapping[str, Sequence[float]], title: str, limits_ms: Mapping[str, float]
) -> None:
    """Draw how each latency is distributed, with its percentiles and its limit for goodput.

    Args:
        latencies_ms: every value, by the names of `figures.LATENCIES`.
        limits_ms: as given to `figures.measure`.
    """
    figure, panels = _figure(title)
    for axes, (name, values) in zip(panels.flat, latencies_ms.items(), strict=True):
        counted = "pauses between pieces" if name == "itl" else "requests"
        _label(axes, TITLES[name], f"{name.upper()} (ms, logarithmic)", f"number of {counted}")
        if values:
            _draw_distribution(
                axes, sorted(max(value, _SHORTEST_MS) for value in values), limits_ms.get(name)
            )
        else:
            axes.text(0.5, 0.5, "no values", transform=axes.transAxes, ha="center")
    figure.savefig(path)


def plot_sweep(
    path: Path, points: Sequence[tuple[str, Figures]], title: str, limits_ms: Mapping[str, float]
) -> None:
    """Draw TTFT, TPOT, request rate and token throughput at each point, with the limits for goodput."""
    figure, ((ttft, tpot), (requests, tokens)) = _figure(title)
    for axes, name in ((ttft, "ttft"), (tpot, "tpot")):
        _draw_percentiles(axes, name, points, limits_ms.get(name))
    _label(requests, "Request throughput and goodput", "offered load", "requests per second")
    _draw_line(requests, points, [one.request_throughput for _, one in points], label="throughput")
    goodput = [one.request_goodput for _, one in points if one.request_goodput is not None]
    if limits_ms:
        slo = ", ".join(f"{name.upper()} ≤ {limit_ms:g} ms" for name, limit_ms in limits_ms.items())
        _draw_line(requests, points, goodput, label=f"goodput: {slo}", **_GOODPUT)
    requests.set_ylim(bottom=0)
    requests.legend(framealpha=1)
    _label(tokens, "Output token throughput", "offered load", "output tokens per second")
    _draw_line(tokens, points, [one.output_throughput for _, one in points])
    tokens.set_ylim(bottom=0)
    figure.savefig(path)


def _draw_distribution(axes: Any, ordered: Sequence[float], limit_ms: float | None) -> None:
    low, high = ordered[0] / 1.2, ordered[-1] * 1.2
    axes.hist(
        ordered, bins=[low * (high / low) ** (place / _BINS) for place in range(_BINS + 1)], color=_BARS
    )
    for percent, color, style in zip(MARKED_PERCENTS, _COLORS, _STYLES, strict=True):
        value = percentile(ordered, percent)
        axes.axvline(value, color=color, linestyle=style, label=f"p{percent:g}: {value:.4g} ms")
    if limit_ms is not None:
        within = sum(value <= limit_ms for value in ordered) / len(ordered)
        axes.axvline(limit_ms, **_slo_line(limit_ms, f", met by {within:.1%}"))
    _scale(axes.set_xscale, axes.xaxis)
    axes.legend(framealpha=1)


def _draw_percentiles(
    axes: Any, name: str, points: Sequence[tuple[str, Figures]], limit_ms: float | None
) -> None:
    _label(axes, TITLES[name], "offered load", f"{name.upper()} (ms, logarithmic)")
    for percent, color, style in zip(MARKED_PERCENTS, _COLORS, _STYLES, strict=True):
        values = [one.latencies[name].percentiles[percent] for _, one in points]
        _draw_line(axes, points, values, color=color, linestyle=style, label=f"p{percent:g}")
    if limit_ms is not None:
        axes.axhline(limit_ms, **_slo_line(limit_ms))
    if any(one.latencies[name].percentiles[MARKED_PERCENTS[0]] > 0 for _, one in points):
        _scale(axes.set_yscale, axes.yaxis)
    axes.legend(framealpha=1)


def _draw_line(
    axes: Any, points: Sequence[tuple[str, Figures]], values: Sequence[float], **style: Any
) -> None:
    places = range(len(points))
    axes.plot(places, values, **{"color": _COLORS[0], "marker": "o", "markersize": 4, **style})
    axes.set_xticks(list(places), [name for name, _ in points], rotation=30, ha="right", fontsize=8)


def _slo_line(limit_ms: float, more: str = "") -> dict[str, Any]:
    return {"color": _SLO_COLOR, "linestyle": ":", "linewidth": 2, "label": f"SLO: {limit_ms:g} ms{more}"}


def _scale(set_scale: Callable[[str], None], axis: Any) -> None:
    """Make an axis logarithmic, with plain numbers at 1, 2 and 5 of each power of ten."""
    # An extra that tables do without.
    from matplotlib.ticker import LogLocator, NullFormatter

    set_scale("log")
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _label(axes: Any, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)


def _figure(title: str) -> tuple[Any, Any]:
    # An extra that tables do without.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, wrap=True)
    return figure, figure.subplots(2, 2)
