"""`baton`, and `python -m baton`: a signal before there is a command to stop ends it silently."""

import signal
import sys
from collections.abc import Sequence

from baton_service.ending_signals import end_at

_EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            end_at(number)
    try:
        from baton.cli import main as run  # takes long enough to be interrupted

        return run(argv)
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
