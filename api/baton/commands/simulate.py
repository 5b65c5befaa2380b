"""`baton simulate`: how much a fleet serves of a trace, or whether clusters hold under injected faults."""

from __future__ import annotations

import argparse
import itertools
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from baton.commands.simulate_arguments import CAPACITY_FLAGS, SIMULATION_FLAGS
from baton.config.flags import Flag
from baton_core.errors import InvalidConfigError
from baton_simulator.campaign import Plan, Tally, run_campaign, run_seeds, run_shrunk
from baton_simulator.capacity.command import answer
from baton_simulator.capacity.machines import MACHINES
from baton_simulator.run_report import describe_run
from baton_simulator.scenario import ALL_FAULTS, FaultKind, make_scenario
from baton_simulator.simulation import simulate as run
from baton_simulator.topology import parse_topology

_TELL_EVERY_S: Final = 10.0
_OF_MACHINES: Final = (
    "--model-shape",
    "--tensor-parallel-size",
    "--gpu-memory-utilization",
    "--compute-efficiency",
    "--bandwidth-efficiency",
)
"""Flags of machines by name: a file of measured steps has these in its figures."""


def simulate(args: argparse.Namespace) -> int:
    """Answer what is asked of a trace, or else run the seeds that were asked for; 1 if one failed.

    Raises:
        InvalidConfigError: a value is not allowed, or a flag says nothing about what is asked.
    """
    for where, flags in _useless_flags(args).items():
        _require_default(args, flags, where)
    if args.trace is not None:
        return answer(args)
    if args.topology:
        parse_topology(args.topology)
    plan = Plan(topology=args.topology or None, kinds=parse_faults(args.faults))
    if args.seed is not None:
        return _run_one(plan, args.seed, shows_all=args.story)
    seeds = range(args.first, args.first + args.seeds) if args.seeds else itertools.count(args.first)
    began = time.monotonic()
    tally = run_campaign(plan, seeds, os.cpu_count() or 1, _Progress(began))
    sys.stdout.write(_summary(tally, time.monotonic() - began))
    return 0 if tally.failed_seed is None else _tell_failure(plan, tally.failed_seed)


def parse_faults(text: str) -> frozenset[FaultKind]:
    """Read names of kinds, `all` or `none`.

    Raises:
        InvalidConfigError: one is unknown.
    """
    if text in ("all", "none"):
        return ALL_FAULTS if text == "all" else frozenset()
    try:
        return frozenset(FaultKind(name) for name in text.split(","))
    except ValueError:
        allowed = ", ".join(FaultKind)
        raise InvalidConfigError(
            f"faults is {text!r}; allowed: all, none, or some of {allowed}, separated by commas"
        ) from None


def _useless_flags(args: argparse.Namespace) -> Mapping[str, Sequence[Flag]]:
    """Return the flags that change nothing beside the others, by where they do so."""
    if args.trace is None:
        of_seeds = {
            "without --seed": ("--story",) if args.seed is None else (),
            "beside --seed": () if args.seed is None else ("--seeds", "--first"),
        }
        return {"without --trace": CAPACITY_FLAGS, **_named(SIMULATION_FLAGS, of_seeds)}
    is_profile = args.hardware not in MACHINES and Path(args.hardware).is_file()
    names = {
        "without --lose": () if args.lose else ("--lose-at", "--racks"),
        "without --sweep ratio": () if args.sweep == "ratio" else ("--ratios",),
        "without --slo": () if args.slo else ("--enforce-slo",),
        "with a file as --hardware": _OF_MACHINES if is_profile else (),
    }
    return {"beside --trace": SIMULATION_FLAGS, **_named(CAPACITY_FLAGS, names)}


def _named(flags: Sequence[Flag], names: Mapping[str, Sequence[str]]) -> dict[str, list[Flag]]:
    return {where: [flag for flag in flags if flag.name in some] for where, some in names.items()}


def _require_default(args: argparse.Namespace, flags: Sequence[Flag], where: str) -> None:
    for flag in flags:
        if (value := getattr(args, flag.field)) != flag.default:
            raise InvalidConfigError(f"{flag.name} is {value!r}; allowed: nothing {where}")


class _Progress:
    """Says now and then how far it is."""

    def __init__(self, began: float) -> None:
        self._began = self._told = began

    def __call__(self, tally: Tally) -> None:
        now = time.monotonic()
        if now - self._told >= _TELL_EVERY_S:
            self._told = now
            sys.stderr.write(f"{tally.num_runs} runs in {now - self._began:.0f} s\n")


def _run_one(plan: Plan, seed: int, *, shows_all: bool) -> int:
    if shows_all:
        sys.stdout.write(describe_run(run(make_scenario(seed, plan.topology, plan.kinds))))
    began = time.monotonic()
    tally = run_seeds(plan, [seed])
    sys.stdout.write(_summary(tally, time.monotonic() - began))
    return 0 if tally.failed_seed is None else _tell_failure(plan, seed)


def _summary(tally: Tally, seconds: float) -> str:
    met = "".join(f"  {name}: {count}\n" for name, count in sorted(tally.counts.items()))
    result = "all held" if tally.failed_seed is None else f"seed {tally.failed_seed} failed"
    return f"{tally.num_runs} runs in {seconds:.1f} s: {result}\n{met}"


def _tell_failure(plan: Plan, seed: int) -> int:
    sys.stdout.write(f"\nThe smallest scenario found that fails:\n\n{describe_run(run_shrunk(plan, seed))}")
    sys.stdout.write(f"\nAgain: {shlex.join(_command(plan, seed))}\n")
    return 1


def _command(plan: Plan, seed: int) -> Sequence[str]:
    topology = ("--topology", plan.topology) if plan.topology else ()
    kinds = ",".join(kind for kind in FaultKind if kind in plan.kinds) or "none"
    faults = () if plan.kinds == ALL_FAULTS else ("--faults", kinds)
    return ("baton", "simulate", "--seed", str(seed), *topology, *faults)
