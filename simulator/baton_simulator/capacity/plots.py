"""Figures as a picture; needs the extra `simulate`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from baton_core.errors import require
from baton_simulator.capacity.figures import Figures
from baton_simulator.capacity.output_files import require_writable

SUFFIXES: Final = (".png", ".svg", ".pdf")


def require_plots(path: Path) -> None:
    """Refuse a picture that cannot be drawn, before hours of simulation.

    Raises:
        InvalidConfigError: matplotlib is missing, the kind of file is unknown, or it cannot be written.
    """
    can_draw = find_spec("matplotlib") is not None
    require("plot", str(path), can_draw, "nothing without matplotlib, pip install 'baton[simulate]'")
    require("plot", str(path), path.suffix in SUFFIXES, f"a file ending with {', '.join(SUFFIXES)}")
    require_writable(path, "plot")


def plot(path: Path, rows: Mapping[str, Figures], title: str) -> None:
    """Draw goodput beside TTFT and TPOT, a group of bars for each row."""
    # An extra that tables do without.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=9, wrap=True)
    goodput, ttft, tpot = figure.subplots(1, 3)
    places, all_figures = range(len(rows)), list(rows.values())
    goodput.bar(places, [one.goodput_per_s for one in all_figures], color="tab:green")
    goodput.set_ylabel("requests per second within the SLO")
    for axes, name in ((ttft, "ttft"), (tpot, "tpot")):
        for offset, part in ((-0.2, "p50_s"), (0.2, "p99_s")):
            values = [getattr(getattr(one, name), part) * 1e3 for one in all_figures]
            axes.bar([place + offset for place in places], values, width=0.4, label=part.removesuffix("_s"))
        axes.set_ylabel(f"{name.upper()}, ms")
        axes.legend()
    for axes in (goodput, ttft, tpot):
        axes.set_xticks(list(places), list(rows), rotation=45, ha="right", fontsize=8)
    figure.savefig(path)
