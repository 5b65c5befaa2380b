"""`baton`, and `python -m baton`: an interrupt before there is a command to stop ends it silently."""

import sys
from collections.abc import Sequence

_EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit code."""
    try:
        from baton.cli import main as run  # takes long enough to be interrupted

        return run(argv)
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
