"""A process that ends waits for its threads with a deep stack, but not for long."""

from __future__ import annotations

import subprocess
import sys
import time

WAITS = """
import os, time
from baton_sandbox import deep_stack
deep_stack.END_WITHIN_S = {end_within_s}
deep_stack.start_deep(lambda: (time.sleep({seconds}), os.write(1, b"done")))
"""


def said(seconds: float, end_within_s: float) -> str:
    """Return what a thread says that works for `seconds`, in a process that ends at once."""
    program = WAITS.format(seconds=seconds, end_within_s=end_within_s)
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60.0, check=True
    )
    return ended.stdout


def test_a_thread_at_work_is_awaited() -> None:
    assert said(0.3, 30.0) == "done"


def test_one_that_takes_long_holds_up_no_exit() -> None:
    began_s = time.monotonic()
    assert said(50.0, 0.1) == ""
    assert time.monotonic() - began_s < 40.0
