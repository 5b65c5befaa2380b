"""Questions about a fleet: its goodput, its best ratio, its limit, the cost of a loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from baton_core.errors import InvalidConfigError
from baton_core.requests.request_context import Slo
from baton_simulator.capacity.figures import Figures, busy_by_role, measure
from baton_simulator.capacity.fleet_run import FleetPlan, FleetRun, Loss
from baton_simulator.capacity.trace import Scale
from baton_simulator.capacity.trace_formats import TraceRequest
from baton_simulator.capacity.worker_mix import ratios
from baton_simulator.capacity.workload import Ask, make_workload

LOADS: Final = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Multiples of the arrival rate."""
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A fleet, what is asked of it, and how fast it has to be."""

    plan: FleetPlan
    requests: Sequence[TraceRequest]
    scale: Scale
    slo: Slo
    report: Report
    """Hears of each run as it begins."""

    def goodput(self) -> dict[str, Figures]:
        """Return the figures of the given fleet."""
        name = str(self.plan.mix)
        return {name: self._figures(name, self.plan, self._asks(self.scale))}

    def ratio(self, most: int) -> dict[str, Figures]:
        """Return the figures of up to `most` prefill-decode ratios, and of mixed workers."""
        asks = self._asks(self.scale)
        mixes = ratios(self.plan.mix.total, most)
        return {str(mix): self._figures(str(mix), replace(self.plan, mix=mix), asks) for mix in mixes}

    def load(self) -> dict[str, Figures]:
        """Return the figures for slower and faster arrivals."""
        rows = {}
        for factor in LOADS:
            asks = self._asks(replace(self.scale, speedup=self.scale.speedup * factor))
            rate = f" ({len(asks) / asks[-1].at_s:.3g} requests/s)" if asks[-1].at_s else ""
            name = f"{factor:g}x{rate}"
            rows[name] = self._figures(name, self.plan, asks)
        return rows

    def loss(self, name: str, workers: Sequence[str], at_s: float | None) -> dict[str, Figures]:
        """With and without workers that are lost; by default when half of the requests have come.

        Raises:
            InvalidConfigError: all requests have ended by then.
        """
        asks = self._asks(self.scale)
        at_s = asks[len(asks) // 2].at_s if at_s is None else at_s
        losing = replace(self.plan, loss=Loss(workers=tuple(workers), at_s=at_s))
        rows = {}
        for label, plan in (("none lost", self.plan), (f"{name} lost at {at_s:.3g} s", losing)):
            run = self._run(label, plan, asks)
            if at_s > (end_s := _end_s(run)):
                raise InvalidConfigError(
                    f"lose_at is {at_s:g}; allowed: up to {end_s:.3g}, when the last request ends"
                )
            rows[label] = _measure(run, self.slo)
            rows[f"{label}, from then on"] = _measure(run, self.slo, since_s=min(at_s, asks[-1].at_s))
        return rows

    def _figures(self, name: str, plan: FleetPlan, asks: Sequence[Ask]) -> Figures:
        return _measure(self._run(name, plan, asks), self.slo)

    def _run(self, name: str, plan: FleetPlan, asks: Sequence[Ask]) -> FleetRun:
        self.report(name)
        run = FleetRun(plan, asks)
        run.run()
        return run

    def _asks(self, scale: Scale) -> list[Ask]:
        return make_workload(self.requests, scale)


def best(rows: dict[str, Figures]) -> str | None:
    """The row with the highest goodput, of equal ones the one with the lower mean E2E; None if all have 0."""
    if not any(row.goodput_per_s for row in rows.values()):
        return None
    return max(rows, key=lambda name: (rows[name].goodput_per_s, -rows[name].e2e.mean_s))


def _end_s(run: FleetRun) -> float:
    return max(result.ask.at_s + result.e2e_s for result in run.router.results.values())


def _measure(run: FleetRun, slo: Slo, since_s: float = 0.0) -> Figures:
    """Return the figures of requests since then; workers' time is that of the whole run."""
    results = list(run.router.results.values())
    duration_s = _end_s(run) - results[0].ask.at_s
    busy = busy_by_role({name: worker.busy_s for name, worker in run.workers.items()}, duration_s)
    return measure([result for result in results if result.ask.at_s >= since_s], busy, slo)
