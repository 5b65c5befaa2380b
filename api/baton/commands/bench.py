"""`baton bench serve` and `sweep`: measure a running server and report the figures."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import sys
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from baton.commands.bench_plan import is_paced, read_goodput, read_pairs, read_plan
from baton_bench.figures import MARKED_PERCENTS, Figures, latencies_ms, measure
from baton_bench.plots import plot_distributions, plot_sweep
from baton_bench.progress import Progress
from baton_bench.results import as_json, detailed, failures, file_name, summary, table, warnings
from baton_bench.serving import Measured, ServePlan, measure_server
from baton_bench.sweep import SweepPoint, plan_of, sweep_points, sweep_table
from baton_core.errors import InvalidConfigError
from baton_simulator.capacity.output_files import require_writable, writing
from baton_simulator.capacity.plots import require_plots

_OF_FILES: Final = ("save_detailed", "result_dir", "result_filename", "metadata")
"""Fields of flags that say what is written of results."""


def bench_serve(args: argparse.Namespace) -> int:
    """Measure once; 1 if a request failed.

    Raises:
        BatonError: the flags do not go together, or the server does not answer.
    """
    plan, reporter = read_plan(args), _Reporter(args)
    rate = float(args.request_rate) if args.request_rate else _default_rate(args)
    point = SweepPoint(rate=rate, max_concurrency=args.max_concurrency)
    measured, figures = reporter.measure(plan, point)
    if args.plot:
        whole = [answer for answer in measured.run.answers if not answer.error]
        title = _title(args, measured.model, f"at {point}\n{summary(figures)}")
        with writing(Path(args.plot), "--plot"):
            plot_distributions(Path(args.plot), latencies_ms(whole), title, reporter.goodput)
    return int(figures.failed > 0)


def bench_sweep(args: argparse.Namespace) -> int:
    """Measure at each point; 1 if a request failed.

    Raises:
        BatonError: the flags do not go together, or the server does not answer.
    """
    rates: list[float | None] = [float(rate) for rate in args.request_rates] or [_default_rate(args)]
    if not (args.request_rates or args.max_concurrencies):
        raise InvalidConfigError("--request-rates is not given; allowed: it, --max-concurrencies, or both")
    plan, reporter = read_plan(args), _Reporter(args)
    rows: list[tuple[str, Figures]] = []
    model = ""
    try:
        for number, point in enumerate(sweep_points(rates, args.max_concurrencies)):
            sys.stdout.write(f"{point}\n")
            measured, figures = reporter.measure(plan_of(plan, point, number, args.burstiness), point)
            model = measured.model
            rows.append((str(point), figures))
    finally:
        if rows:
            sys.stdout.write(f"{sweep_table(rows)}\n")
    if args.plot:
        with writing(Path(args.plot), "--plot"):
            plot_sweep(Path(args.plot), rows, _title(args, model, "at each point"), reporter.goodput)
    return int(any(figures.failed for _, figures in rows))


class _Reporter:
    """Prints and writes each measurement."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self.goodput = read_goodput(args.goodput)
        self._percents = [float(percent) for percent in args.metric_percentiles.split(",")]
        self._folder = Path(args.result_dir)
        self._num_saved: Counter[str] = Counter()
        """Results of a sweep by the names of their files; equal points are numbered from the second on."""
        if args.plot:
            require_plots(Path(args.plot))
        self._saves = args.save_result or args.append_result
        if self._saves:
            _make_folder("--result-dir", args.result_dir, self._folder)
            if name := args.result_filename:
                _make_folder("--result-filename", name, (self._folder / name).parent)
                if args.benchmark == "serve":
                    require_writable(self._folder / name, "--result-filename")
        elif unused := [f"--{name.replace('_', '-')}" for name in _OF_FILES if getattr(args, name)]:
            sys.stderr.write(f"baton bench: without --save-result, {', '.join(unused)} write nothing\n")

    def measure(self, plan: ServePlan, point: SweepPoint) -> tuple[Measured, Figures]:
        """Measure once; a run that is cut off is printed and not written.

        Raises:
            BatonError: the server does not answer, or the plan does not suit it.
            KeyboardInterrupt: the run was cut off.
        """
        with Progress(plan.num_prompts, "req", is_shown=not self._args.disable_tqdm) as progress:
            measured = asyncio.run(measure_server(plan, progress.add))
        figures = measure(measured.run, sorted({*self._percents, *MARKED_PERCENTS}), self.goodput)
        settings: dict[str, object] = {}
        if point.max_concurrency:
            settings["Maximum request concurrency"] = point.max_concurrency
        if point.rate is not None and math.isfinite(point.rate):
            settings["Request rate configured (RPS)"] = point.rate
        shown = self._args.percentile_metrics.split(",")
        if figures.completed or not figures.failed:
            sys.stdout.write(table(figures, shown, settings))
        for warning in (*warnings(figures, is_paced=is_paced(plan)), *failures(figures)):
            sys.stderr.write(f"baton bench: {warning}\n")
        if not measured.run.is_whole:
            count = f"{len(measured.run.answers)} of up to {plan.num_prompts}"
            sys.stderr.write(f"baton bench: interrupted: these are the figures of {count} requests\n")
            raise KeyboardInterrupt
        if self._saves:
            self._save(plan, point, measured, figures)
        return measured, figures

    def _save(self, plan: ServePlan, point: SweepPoint, measured: Measured, figures: Figures) -> None:
        args, now = self._args, datetime.now()
        label = args.label or args.backend
        name = args.result_filename or file_name(
            label, point.rate_name, point.max_concurrency, measured.model, now
        )
        if args.result_filename and args.benchmark == "sweep":
            stem = f"{Path(name).stem}-{point.rate_name}qps-{point.max_concurrency or 'any'}"
            self._num_saved[stem] += 1
            again = f"-{self._num_saved[stem]}" if self._num_saved[stem] > 1 else ""
            name = str(Path(name).with_stem(stem + again))
        result: dict[str, Any] = {
            "date": f"{now:%Y%m%d-%H%M%S}",
            "endpoint_type": args.backend,
            "backend": args.backend,
            "label": label,
            "model_id": measured.model,
            "tokenizer_id": measured.tokenizer,
            "num_prompts": len(measured.run.answers),
            **read_pairs(args.metadata),
            "request_rate": point.rate if point.rate and math.isfinite(point.rate) else point.rate_name,
            "burstiness": args.burstiness,
            "max_concurrency": point.max_concurrency,
            **_ramp(args),
            **as_json(figures),
        }
        if args.save_detailed:
            result |= detailed(measured.run)
        path = self._folder / name
        line = msgspec.json.encode(result) + b"\n"
        with writing(path, "--result-filename"):
            begin = b"\n" if args.append_result and _ends_amid_line(path) else b""
            with path.open("ab" if args.append_result else "wb") as file:
                file.write(begin + line)
        sys.stdout.write(f"Written to {path}\n")


def _ends_amid_line(path: Path) -> bool:
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _make_folder(flag: str, given: str, folder: Path) -> None:
    """Make the folder that a flag leads to, with its parents.

    Raises:
        InvalidConfigError: it cannot be made, or not be written to.
    """
    reason = "no permission to write there"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return
    except OSError as error:
        reason = error.strerror or type(error).__name__
    allowed = f"what leads to a folder to write to, which is made if it is missing; {folder}: {reason}"
    raise InvalidConfigError(f"{flag} is {given!r}; allowed: {allowed}")


def _title(args: argparse.Namespace, model: str, what: str) -> str:
    asked = f"{args.dataset_name}: {args.num_prompts} requests {what}"
    return f"{Path(model).name}, {asked}" if model else asked


def _default_rate(args: argparse.Namespace) -> float | None:
    """None: a trace's own."""
    return None if args.dataset_name == "trace" else math.inf


def _ramp(args: argparse.Namespace) -> Mapping[str, object]:
    names = ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps")
    return {name: getattr(args, name) for name in names if getattr(args, name, None) is not None}
