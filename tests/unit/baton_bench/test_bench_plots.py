"""Pictures of benchmarks, of no request too."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton_bench.figures import latencies_ms, measure
from baton_bench.plots import plot_distributions, plot_sweep
from tests.unit.baton_bench.answers import make_answer, make_run


def test_pictures_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    answers = [make_answer(), make_answer([1.2, 1.3])]
    plot_distributions(tmp_path / "a.png", latencies_ms(answers), "two")
    plot_distributions(tmp_path / "b.svg", latencies_ms([]), "none")
    figures = measure(make_run(*answers), (50.0, 99.0), {"ttft": 1.0})
    plot_sweep(tmp_path / "c.svg", [("1/s", figures), ("inf/s", figures)], "two")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "b.svg").read_text()
    assert "<svg" in (tmp_path / "c.svg").read_text()
