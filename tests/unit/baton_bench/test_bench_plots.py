"""Pictures of benchmarks, of no request too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from baton_bench.figures import LATENCIES, MARKED_PERCENTS, latencies_ms, measure
from baton_bench.plots import plot_distributions, plot_sweep
from tests.unit.baton_bench.answers import make_answer, make_run

pytestmark = pytest.mark.slow

pytest.importorskip("matplotlib")
ANSWERS = [make_answer(), make_answer([1.2, 1.3]), make_answer([1.5, 1.5, 1.9])]
LIMITS_MS = {"ttft": 250.0, "tpot": 120.0}


def texts(path: Path) -> list[str]:
    """Texts of a picture; matplotlib repeats each text as a comment of the SVG."""
    return re.findall(r"<!-- (.*?) -->", path.read_text().replace("&#8804;", "≤"), flags=re.DOTALL)


def test_distributions_name_percentiles_limits_and_units(tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    plot_distributions(path, latencies_ms(ANSWERS), "three requests", LIMITS_MS)
    shown = texts(path)
    assert "three requests" in shown
    assert {f"{name.upper()} (ms, logarithmic)" for name in LATENCIES} < set(shown)
    assert {"Time to First Token", "Inter-token Latency", "End-to-end Latency"} < set(shown)
    assert shown.count("number of requests") == 3
    marks = [text.partition(":")[0] for text in shown]
    assert [marks.count(f"p{percent}") for percent in (50, 90, 99)] == [4, 4, 4]
    assert "p50: 200 ms" in shown  # of TTFT: 100, 200 and 500 ms
    assert "SLO: 250 ms, met by 66.7%" in shown
    assert "SLO: 120 ms, met by 33.3%" in shown  # of TPOT: 150, 100 and 200 ms


def test_a_sweep_names_its_points_limits_and_units(tmp_path: Path) -> None:
    path = tmp_path / "c.svg"
    figures = measure(make_run(*ANSWERS), MARKED_PERCENTS, LIMITS_MS)
    plot_sweep(path, [("1/s", figures), ("inf/s", figures)], "two points", LIMITS_MS)
    shown = texts(path)
    assert {"two points", "1/s", "inf/s", "requests per second", "output tokens per second"} < set(shown)
    assert {"SLO: 250 ms", "SLO: 120 ms", "goodput: TTFT ≤ 250 ms, TPOT ≤ 120 ms"} < set(shown)
    assert [shown.count(f"p{percent}") for percent in (50, 90, 99)] == [2, 2, 2]
    assert shown.count("offered load") == 4


def test_pictures_of_nothing_and_of_equal_values_are_drawn(tmp_path: Path) -> None:
    plot_distributions(tmp_path / "a.png", latencies_ms([make_answer()]), "one", {})
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    plot_distributions(tmp_path / "b.svg", latencies_ms([]), "none", LIMITS_MS)
    assert texts(tmp_path / "b.svg").count("no values") == 4
    figures = measure(make_run(), MARKED_PERCENTS, {})
    plot_sweep(tmp_path / "c.svg", [("1/s", figures)], "none", {})
    assert not [text for text in texts(tmp_path / "c.svg") if "SLO" in text or "goodput:" in text]
