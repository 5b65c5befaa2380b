"""`baton router`, its loop under cProfile where it is asked for.

    python -m bench.router_cost.profiled_router PROFILE MODEL [flags of the router]

SIGUSR1 begins a profile, SIGUSR2 ends it and writes it to the file PROFILE.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import signal
import time

from baton.cli import main
from bench.command_line import make_parser


def run(path: str, flags: list[str]) -> None:
    profile = cProfile.Profile(time.thread_time)

    def begin(*_: object) -> None:
        profile.clear()
        profile.enable()

    def end(*_: object) -> None:
        profile.disable()
        profile.dump_stats(f"{path}.part")
        os.replace(f"{path}.part", path)

    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    main(["router", *flags])


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("profile")
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="the model, and flags of the router")
    arguments = parser.parse_args()
    run(arguments.profile, arguments.flags)
