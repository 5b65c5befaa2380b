"""The same load under each setting in turn, over and over: runs that can be compared in pairs."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.replay.cluster import Cluster, Usage, write_load
from bench.replay.loads import Answer, Load
from bench.replay.metrics import RunMetrics, measure
from bench.replay.timed_engine import expected_tokens

DRAIN_S = 60.0
"""After the last arrival, within which a load has to end."""
BUSY = 0.9
"""Share of a core from which a process of one loop counts as saturated."""
MAX_LATE_S = 0.1
"""Mean delay of sending a request."""
MAX_STEP_LATE_S = 0.001
"""Mean time by which a timed step is longer than it should be."""


@dataclass(slots=True, kw_only=True)
class PairedRuns:
    """The results of the runs, by setting and in the order of the repeats."""

    metrics: dict[str, list[RunMetrics]] = field(default_factory=dict)
    usages: dict[str, list[Usage]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    """Wrong tokens and requests without a whole answer."""
    doubts: list[str] = field(default_factory=list)
    """Runs that something else than the workers' timers may have slowed down."""

    def add(self, setting: str, metrics: RunMetrics, usage: Usage) -> None:
        self.metrics.setdefault(setting, []).append(metrics)
        self.usages.setdefault(setting, []).append(usage)


class PairedLoad:
    """One load and what its answers have to be."""

    def __init__(self, load: Load, folder: Path, *, vocab_size: int | None, name: str = "load") -> None:
        """`vocab_size`: of timed workers, whose tokens are known; None where they are a model's."""
        self.load = load
        self._path = write_load(load, folder, name)
        self._num_prompt_tokens = sum(len(arrival.token_ids) for arrival in load.arrivals)
        self._within_s = max(arrival.at_s for arrival in load.arrivals) + DRAIN_S
        self._expected = vocab_size and [
            expected_tokens(arrival.token_ids, arrival.num_tokens, vocab_size) for arrival in load.arrivals
        ]

    def run(self, cluster: Cluster, setting: str, into: PairedRuns) -> None:
        """Run it once and add its results, which are also printed to standard error.

        Raises:
            RuntimeError: it did not come to an end.
            ValueError: no request was answered.
        """
        result, usage = cluster.run(setting, self._path, within_s=self._within_s)
        metrics = measure(result.answers, self._num_prompt_tokens)
        into.add(setting, metrics, usage)
        into.faults += [f"{setting}: {fault}" for fault in self._faults(result.answers)]
        into.doubts += [f"{setting}: {doubt}" for doubt in _doubts(result.answers, usage)]
        steps = ", ".join(f"{name} {share:.0%}" for name, share in usage.steps.items())
        print(
            f"  {setting}: {result.wall_s:.1f} s, mean TTFT {metrics.mean_ttft_s * 1e3:.0f} ms, mean E2E "
            f"{metrics.mean_e2e_s * 1e3:.0f} ms, hits {metrics.hit_rate:.1%}, split "
            f"{metrics.split_share:.0%}; engines busy: {steps or 'not measured'}; CPU: router "
            f"{usage.router:.0%}, load generator {usage.load_generator:.0%}, workers {usage.workers:.0%}; "
            f"steps {usage.late_s * 1e3:.2f} ms late",
            file=sys.stderr,
            flush=True,
        )

    def _faults(self, answers: Sequence[Answer]) -> Iterator[str]:
        for number, answer in enumerate(answers):
            if answer.error:
                yield f"request {number} failed: {answer.error}"
            elif self._expected and answer.token_ids != self._expected[number]:
                yield f"request {number} has wrong tokens ({answer.prefill_worker} to {answer.decode_worker})"


def run_in_turns(cluster: Cluster, load: PairedLoad, settings: Sequence[str], *, repeats: int) -> PairedRuns:
    """Run every setting once per repeat; each repeat begins with another one."""
    runs = PairedRuns()
    for repeat in range(repeats):
        print(f"repeat {repeat + 1} of {repeats}", file=sys.stderr, flush=True)
        first = repeat % len(settings)
        for setting in (*settings[first:], *settings[:first]):
            load.run(cluster, setting, runs)
    runs.metrics = {setting: runs.metrics[setting] for setting in settings}
    return runs


def _doubts(answers: Sequence[Answer], usage: Usage) -> Iterator[str]:
    late_s = statistics.fmean(answer.sent_s for answer in answers)
    if late_s > MAX_LATE_S:
        yield f"requests were sent {late_s * 1e3:.0f} ms late on average"
    if usage.late_s > MAX_STEP_LATE_S:
        yield f"steps took {usage.late_s * 1e3:.1f} ms too long on average: the machine had other work"
    for name, share in (("router", usage.router), ("load generator", usage.load_generator)):
        if share > BUSY:
            yield f"the {name} used {share:.0%} of a core"
