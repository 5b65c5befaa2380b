"""Many seeds over the cores of this machine, until all have held or one has not."""

from __future__ import annotations

import gc
import itertools
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import active_children, get_context
from typing import Final

from baton_simulator.scenario import ALL_FAULTS, FaultKind, make_scenario
from baton_simulator.shrink import shrink
from baton_simulator.simulation import RunResult, simulate

_SEEDS_PER_TASK: Final = 25
_COLLECT_EVERY: Final = 10
"""Runs between two collections of garbage: when they come by themselves they cost as much as the runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings by which a seed becomes a scenario."""

    topology: str | None = None
    """None lets each seed choose."""
    kinds: frozenset[FaultKind] = ALL_FAULTS


@dataclass(slots=True, kw_only=True)
class Tally:
    """The counts so far, and the first seed that failed."""

    num_runs: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failed_seed: int | None = None

    def add(self, other: Tally) -> None:
        self.num_runs += other.num_runs
        self.counts.update(other.counts)
        if other.failed_seed is not None and (
            self.failed_seed is None or other.failed_seed < self.failed_seed
        ):
            self.failed_seed = other.failed_seed


def run_seeds(plan: Plan, seeds: Iterable[int]) -> Tally:
    """Run seeds in this process, up to the first that fails."""
    tally = Tally()
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        for seed in seeds:
            result = simulate(make_scenario(seed, plan.topology, plan.kinds))
            tally.num_runs += 1
            tally.counts.update(result.counts)
            if result.failure:
                tally.failed_seed = seed
                break
            if tally.num_runs % _COLLECT_EVERY == 0:
                gc.collect()
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
    return tally


def run_campaign(
    plan: Plan,
    seeds: range | itertools.count[int],
    num_processes: int,
    on_progress: Callable[[Tally], None] = lambda tally: None,
) -> Tally:
    """Run seeds over processes; after a failure no new ones begin. `seeds` may have no end.

    An interrupt ends the processes amid their runs.

    Args:
        on_progress: told of all that is known, now and then.
    """
    tally = Tally()
    tasks = _tasks(seeds)
    with _processes(num_processes) as pool:
        running = {pool.submit(run_seeds, plan, task) for task in itertools.islice(tasks, 2 * num_processes)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for one in done:
                tally.add(one.result())
            on_progress(tally)
            if tally.failed_seed is None:
                running |= {pool.submit(run_seeds, plan, task) for task in itertools.islice(tasks, len(done))}
    return tally


@contextmanager
def _processes(number: int) -> Iterator[ProcessPoolExecutor]:
    others = active_children()
    ignore_interrupts = (signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the caller acts on it
    with ProcessPoolExecutor(
        number, mp_context=get_context("spawn"), initializer=signal.signal, initargs=ignore_interrupts
    ) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in active_children():
                if process not in others:
                    process.kill()
            raise


def run_shrunk(plan: Plan, seed: int) -> RunResult:
    """Run a seed that fails as the smallest scenario that fails."""
    scenario = make_scenario(seed, plan.topology, plan.kinds)
    return simulate(shrink(scenario, lambda smaller: bool(simulate(smaller).failure)))


def _tasks(seeds: Iterable[int]) -> Iterator[tuple[int, ...]]:
    remaining = iter(seeds)
    while task := tuple(itertools.islice(remaining, _SEEDS_PER_TASK)):
        yield task
