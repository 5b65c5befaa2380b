"""Runs a command and ends all that it has started: when it ends, or when standard input does.

    python -m bench.peer.guardian LOG COMMAND...

So the command ends when its parent is killed. A line on standard output reports that the command runs; the
command itself writes to LOG.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

GRACE_S: Final = 10.0
"""Between SIGTERM, on which engines remove their shared memory, and SIGKILL."""
POLL_S: Final = 0.05
_PR_SET_CHILD_SUBREAPER: Final = 36


def main() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stay)
    log, *command = sys.argv[1:]
    with Path(log).open("ab") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
            close_fds=False,  # what the parent has passed on is for the command
        )
    print(child.pid, flush=True)
    threading.Thread(target=end_with_stdin, args=(child,), daemon=True).start()
    code = child.wait()
    end_orphans()
    sys.exit(code if code >= 0 else 128 - code)


def stay(*_: object) -> None:
    """Leave a signal to the parent, which it reaches too; the command, as a new program, has the default."""


def end_with_stdin(child: subprocess.Popen[bytes]) -> None:
    """Wait for the end of standard input, then end the command."""
    while os.read(0, 4096):
        pass
    with suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGTERM)
        os.killpg(child.pid, signal.SIGCONT)
    timer = threading.Timer(GRACE_S, child.kill)
    timer.daemon = True
    timer.start()


def end_orphans() -> None:
    """End what the command has left behind, which the kernel has made this process's children.

    Python's trackers of shared memory take no SIGTERM: they tidy up and go once nobody else is there.
    """
    deadline = time.monotonic() + GRACE_S
    while orphans := Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        for pid in orphans:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL)
        time.sleep(POLL_S)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    main()
