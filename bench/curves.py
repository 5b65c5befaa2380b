"""Draws how costs grow: a step over its batch, a router over streams, a decision over workers, transfers.

    python -m bench.curves --out docs/images/curves.svg --tables FOLDER

Runs `cpu_step`, `router_cost`, `decision_cost` and `transfer` one after the other and draws their tables.
`--tables` keeps what they print; a table that is there already is drawn as it is. Needs matplotlib
(`pip install -e '.[dev]'`) and a machine without other work; takes a quarter of an hour.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from bench.command_line import make_parser

WITHIN_S: Final = 1800.0
Curves = dict[str, list[tuple[float, float]]]
"""Points of each curve, by its name."""
COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "cpu_step": ("--dtype", "float32", "--batch", "1", "2", "4", "8", "16", "32", "--context", "512"),
    "router_cost": ("--streams", "1", "16", "64", "512", "--repeats", "1"),
    "decision_cost": ("--workers", "10", "100", "1000", "--blocks", "1000000"),
    "transfer": (
        *("--mib", "1", "4", "16", "64", "256", "--pieces", "blocks"),
        *("--transports", "shared_memory", "tcp", "--repeats", "5"),
    ),
}
"""Arguments of the programs."""
_NUMBER: Final = re.compile(r"-?[\d,]*\.?\d+")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/images/curves.svg"))
    parser.add_argument("--tables", type=Path, required=True, help="folder for what the programs print")
    args = parser.parse_args()
    args.tables.mkdir(parents=True, exist_ok=True)
    tables = {name: table_of(name, args.tables / f"{name}.txt") for name in COMMANDS}
    plot(args.out, tables)
    print(f"drawn in {args.out}")


def table_of(name: str, path: Path) -> list[list[str]]:
    """Return the cells of a program's table, which is run unless it has been."""
    if not path.exists():
        print(f"running bench.{name}", flush=True)
        command = (sys.executable, "-m", f"bench.{name}", *COMMANDS[name])
        done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
        if done.returncode:
            raise SystemExit(f"bench.{name} has failed:\n{done.stderr[-2000:]}")
        path.write_text(done.stdout, encoding="utf-8")
    lines = path.read_text(encoding="utf-8").splitlines()
    split = [line.split("|")[1:-1] if line.startswith("|") else line.split() for line in lines]
    return [[cell.strip() for cell in cells] for cells in split]


def number(cell: str) -> float:
    """Return the number in a cell, with or without its unit."""
    found = _NUMBER.search(cell)
    if found is None:
        raise ValueError(f"{cell!r} has no number")
    return float(found[0].replace(",", ""))


def step_curves(rows: list[list[str]]) -> Curves:
    steps = [row for row in rows if len(row) == 8 and row[0].isdigit()]
    return {
        "engine": [(number(row[0]), number(row[3])) for row in steps],
        "plain torch": [(number(row[0]), number(row[6])) for row in steps],
        "reading its bytes once": [(number(row[0]), number(row[1])) for row in steps],
    }


def router_curves(rows: list[list[str]]) -> Curves:
    curves: Curves = defaultdict(list)
    for row in rows:
        if len(row) >= 8 and row[0] in ("gRPC", "HTTP"):
            curves[row[0]].append((number(row[1]), number(row[5])))
            curves[f"{row[0]}, bare server"].append((number(row[1]), number(row[6])))
    return curves


def decision_curves(rows: list[list[str]]) -> Curves:
    decisions = [row for row in rows if len(row) == 12 and row[0].replace(",", "").isdigit()]
    return {
        "lookup and snapshot": [(number(row[0]), number(row[2])) for row in decisions],
        "decision": [(number(row[0]), number(row[3])) for row in decisions],
        "decision, all prefixes apart": [(number(row[0]), number(row[5])) for row in decisions],
    }


def transfer_curves(rows: list[list[str]]) -> Curves:
    curves: Curves = defaultdict(list)
    for row in rows:
        if len(row) == 7 and row[1] == "blocks":
            curves[row[0]].append((number(row[2]), number(row[3])))
    return curves


def plot(path: Path, tables: dict[str, list[list[str]]]) -> None:
    """Draw a panel for each table."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained", facecolor="white")
    FigureCanvasSVG(figure)
    panels = (
        ("A decode step", "sequences", "ms", step_curves(tables["cpu_step"])),
        ("A token at the router", "streams", "µs of CPU", router_curves(tables["router_cost"])),
        ("A placement", "workers", "µs of CPU", decision_curves(tables["decision_cost"])),
        ("Moving blocks", "MiB", "GB/s", transfer_curves(tables["transfer"])),
    )
    for axes, (title, x_label, y_label, curves) in zip(figure.subplots(2, 2).flat, panels, strict=True):
        plot_panel(axes, title, x_label, y_label, curves)
    figure.savefig(path, metadata={"Date": None})


def plot_panel(axes: Any, title: str, x_label: str, y_label: str, curves: Curves) -> None:
    if not any(curves.values()):
        raise SystemExit(f"{title}: the table has no rows that can be drawn")
    for (name, points), marker in zip(curves.items(), "osd^", strict=False):
        axes.plot(*zip(*points, strict=True), marker=marker, label=name)
    axes.set(title=title, xlabel=x_label, ylabel=y_label, xscale="log", ylim=(0, None))
    axes.grid(visible=True, alpha=0.3)
    axes.legend()


if __name__ == "__main__":
    main()
