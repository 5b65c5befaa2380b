"""The report of the attacks: figures, the faults among them, and how both are printed."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.attack.observations import Held, Sample
from bench.chaos.clients import Tally

PING_P99_MS: Final = 100.0
LAST_MINUTES: Final = 10
ERRORS_OF_SLOPE: Final = 4.5
"""Standard errors that a slope of ten minutes has by chance once in a thousand times (Student's t)."""
SMALLEST_SLOPE: Final = 0.25
"""MiB a minute below which nothing is said to grow: an allocator's arenas come and go by more."""
SPARE_DESCRIPTORS: Final = 8
"""Descriptors that a process may have more after its first attack, of files and threads that it keeps."""
SPARE_CONNECTIONS: Final = 2
"""Connections to Redis that clients keep once they needed several at a time."""


@dataclass(frozen=True, slots=True)
class Slope:
    """Growth of memory, in MiB a minute."""

    per_minute: float
    noise: float

    @property
    def is_growth(self) -> bool:
        return self.per_minute > max(self.noise, SMALLEST_SLOPE)


def slope_of(minutes: Sequence[float]) -> Slope:
    """The straight line through one value for each minute, and what noise alone could make of it.

    Fewer than `LAST_MINUTES` prove nothing: their noise is infinite.
    """
    if len(minutes) < 2:
        return Slope(0.0, math.inf)
    places = range(len(minutes))
    line = statistics.linear_regression(places, minutes)
    if len(minutes) < LAST_MINUTES:
        return Slope(line.slope, math.inf)
    left = sum((y - line.intercept - line.slope * x) ** 2 for x, y in zip(places, minutes, strict=True))
    spread = sum((x - statistics.fmean(places)) ** 2 for x in places)
    return Slope(line.slope, ERRORS_OF_SLOPE * math.sqrt(left / (len(minutes) - 2) / spread))


def each_minute(samples: Sequence[Sample], name: str) -> list[float]:
    """The median of one part's memory in each whole minute."""
    minutes: dict[int, list[float]] = {}
    for sample in samples:
        minutes.setdefault(int((sample.at_s - samples[0].at_s) // 60), []).append(sample.mib[name])
    whole = sorted(minutes)[: int((samples[-1].at_s - samples[0].at_s + 1) // 60)]
    return [statistics.median(minutes[minute]) for minute in whole]


def quantile(values: Sequence[float], share: float) -> float:
    """The value that so large a share of `values` does not exceed."""
    return sorted(values)[min(len(values) - 1, math.ceil(share * len(values)) - 1)] if values else math.inf


@dataclass(frozen=True, slots=True)
class Pings:
    """Times of /ping over new connections, each with the second when it was asked and its milliseconds."""

    calm: Sequence[tuple[float, float]]
    """Beside the ordinary clients alone."""
    attacked: Sequence[tuple[float, float]]

    @property
    def p99_ms(self) -> float:
        return quantile([ms for _, ms in self.attacked], 0.99)

    def during(self, times_s: Sequence[tuple[float, float]]) -> list[float]:
        """Return the milliseconds of those that were asked between a begin and its end."""
        return [ms for at_s, ms in self.attacked if any(began <= at_s < end for began, end in times_s)]


@dataclass(slots=True)
class AttackSum:
    """Sums over the runs of one attack."""

    times_s: list[tuple[float, float]] = field(default_factory=list)
    """Begin and end of each run."""
    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def longest_s(self) -> float:
        return max(ended_s - began_s for began_s, ended_s in self.times_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The observations of a run."""

    tallies: Mapping[str, Tally]
    """Ordinary clients by protocol."""
    pings: Pings
    samples: Sequence[Sample]
    held_before: Mapping[str, Held]
    held_after: Mapping[str, Held]
    log_bytes: Mapping[str, int]
    num_tracebacks: int
    attacks: Mapping[str, AttackSum]
    not_idle: str
    """Why workers did not get idle in the end; empty where they did."""

    def faults(self) -> Iterator[str]:
        """Yield what must not be, in words."""
        for protocol, tally in self.tallies.items():
            if tally.wrong or tally.lost:
                yield f"ordinary {protocol} streams: {len(tally.wrong)} differ, {len(tally.lost)} lost"
        if self.pings.p99_ms >= PING_P99_MS:
            yield f"p99 of /ping is {self.pings.p99_ms:.0f} ms; allowed: below {PING_P99_MS:.0f}"
        for name in self.held_before:
            slope = slope_of(each_minute(self.samples, name)[-LAST_MINUTES:])
            if slope.is_growth:
                grows = f"{slope.per_minute:.2f} MiB a minute, noise {slope.noise:.2f}"
                yield f"the memory of {name} grows by {grows}"
            before, after = self.held_before[name], self.held_after[name]
            if after.num_connections > before.num_connections + SPARE_CONNECTIONS:
                yield f"{name} has {after.num_connections} connections; before: {before.num_connections}"
            if after.num_descriptors > before.num_descriptors + SPARE_DESCRIPTORS:
                yield f"{name} has {after.num_descriptors} descriptors; before: {before.num_descriptors}"
        if self.not_idle:
            yield self.not_idle
        for name, attack in self.attacks.items():
            if attack.wrong:
                yield f"{name}: {len(attack.wrong)} wrong answers, such as: {attack.wrong[0]}"


def print_report(report: Report) -> bool:
    """Print everything; whether nothing is at fault."""
    _print_ordinary(report)
    _print_attacks(report)
    _print_parts(report)
    faults = list(report.faults())
    print("\n" + ("\n".join(f"FAULT: {fault}" for fault in faults) or "No fault."))
    return not faults


def _print_ordinary(report: Report) -> None:
    print(
        "\n| ordinary streams | equal | different | lost | refused, asked again | longest pause |\n"
        + "|---" * 6
        + "|"
    )
    for protocol, tally in report.tallies.items():
        cells = (tally.num_right, len(tally.wrong), len(tally.lost), tally.num_refused)
        print(f"| {protocol} | " + " | ".join(map(str, cells)) + f" | {tally.longest_pause_s:.2f} s |")
        for reason, count in tally.refusals.most_common(3):
            print(f"    {count} x {reason[:300]}")
        for line in (tally.wrong + tally.lost)[:5]:
            print(f"    {line[:600]}")
    print("\n| /ping over a new connection | count | p50 | p99 | longest |\n" + "|---" * 5 + "|")
    for when, pings in (("before", report.pings.calm), ("during the attacks", report.pings.attacked)):
        values = [ms for _, ms in pings]
        figures = (f"{quantile(values, share):.1f} ms" for share in (0.5, 0.99, 1.0))
        print(f"| {when} | {len(values)} | " + " | ".join(figures) + " |")


def _print_attacks(report: Report) -> None:
    print("\n| attack | runs | longest | p99 of /ping meanwhile | wrong | ends |\n" + "|---" * 6 + "|")
    for name, one in sorted(report.attacks.items()):
        ends = ", ".join(f"{count} {how}" for how, count in one.ends.most_common(6))
        p99_ms = quantile(report.pings.during(one.times_s), 0.99)
        figures = f"{len(one.times_s)} | {one.longest_s:.0f} s | {p99_ms:.0f} ms | {len(one.wrong)}"
        print(f"| {name} | {figures} | {ends} |")
    for name, one in sorted(report.attacks.items()):
        for wrong in sorted(set(one.wrong))[:5]:
            print(f"    {name}: {wrong}")


def _print_parts(report: Report) -> None:
    names = list(report.held_before)
    print("\n| MiB at minute | " + " | ".join(names) + " |\n" + "|---" * (1 + len(names)) + "|")
    by_part = {name: each_minute(report.samples, name) for name in names}
    for minute in range(len(by_part[names[0]])):
        print(f"| {minute + 1} | " + " | ".join(f"{by_part[name][minute]:.1f}" for name in names) + " |")
    for title, choose in (("first", 0), ("last", -1)):
        values = (report.samples[choose].mib[name] for name in names)
        print(f"| {title} sample | " + " | ".join(f"{value:.1f}" for value in values) + " |")
    most = (max(sample.mib[name] for sample in report.samples) for name in names)
    print("| most | " + " | ".join(f"{value:.1f}" for value in most) + " |")
    slopes = [slope_of(by_part[name][-LAST_MINUTES:]) for name in names]
    print(
        "| slope a minute ± noise | "
        + " | ".join(f"{s.per_minute:.2f} ± {s.noise:.2f}" for s in slopes)
        + " |"
    )
    logs = (f"{report.log_bytes[name]:,}" for name in names)
    print("| bytes of log | " + " | ".join(logs) + " |")
    for title, of in (("descriptors", "num_descriptors"), ("connections", "num_connections")):
        cells = (
            f"{getattr(report.held_before[name], of)} → {getattr(report.held_after[name], of)}"
            for name in names
        )
        print(f"| {title} | " + " | ".join(cells) + " |")
    print(f"tracebacks in the logs: {report.num_tracebacks}")
