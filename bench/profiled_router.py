"""`baton router`, its loop under cProfile where it is asked for.

    python bench/profiled_router.py PROFILE MODEL [flags of the router]

SIGUSR1 begins a profile, SIGUSR2 ends it and writes it to the file PROFILE.
"""

from __future__ import annotations

import cProfile
import os
import signal
import sys
import time

from baton.cli import main


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
    run(sys.argv[1], sys.argv[2:])
