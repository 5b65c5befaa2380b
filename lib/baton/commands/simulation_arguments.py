"""Flags of `baton simulate` that ask what holds under faults."""

from __future__ import annotations

from typing import Final

from baton.commands.flags import Flag, Form

_MAX_SEED: Final = 2**63 - 1
_SHAPE: Final = Form(r"([1-9][0-9]?[pdmr]){1,8}", "counts of p, d, m and r, such as 2p2d or 1p1d1m2r")
_KINDS: Final = Form(r"[a-z]{1,16}(,[a-z]{1,16}){0,31}", "all, none, or kinds of faults separated by commas")
SIMULATION_FLAGS: Final = (
    Flag("--seeds", int, 1000, "seeds to run with faults; 0 goes on until one fails", low=0, high=_MAX_SEED),
    Flag("--first", int, 0, "the first of them", low=0, high=_MAX_SEED),
    Flag("--seed", int, None, "run this one alone", low=0, high=_MAX_SEED, metavar="S"),
    Flag("--story", bool, False, "with --seed: print every event, also if all holds"),
    Flag(
        "--topology",
        str,
        None,
        "workers by role and routers (r), such as 2p2d1r; default: each seed chooses",
        form=_SHAPE,
        metavar="SHAPE",
    ),
    Flag(
        "--faults",
        str,
        "all",
        "all, none, or some of crash, leave, freeze, partition, break, reset, loss, garble, drift, cancel, "
        "separated by commas",
        form=_KINDS,
        metavar="KINDS",
    ),
)
