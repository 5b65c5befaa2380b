"""Threads with a deep stack, for libraries that follow a grammar's nesting by recursion in C++ or Rust.

An overflow there ends the process. Grammars are bounded in size, and so is their need of a stack. A thread
that Python ends at exit while C++ runs in it may abort the process, so the exit waits for them a while.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar
from weakref import WeakSet

_STACK_BYTES: Final = 256 << 20
"""Reserved, not touched: ten times the measured need of the deepest grammar that the bounds allow."""
END_WITHIN_S: Final = 5.0
"""Time that the exit of the process waits for these threads."""
_STARTING = threading.Lock()
_started: WeakSet[threading.Thread] = WeakSet()
_T = TypeVar("_T")


def start_deep(call: Callable[[], object]) -> None:
    """Start a thread; the exit of the process waits for it, but not for long."""
    thread = threading.Thread(target=call, name="baton-grammar", daemon=True)
    with _STARTING:
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
        _started.add(thread)


def run_deep(call: Callable[[], _T]) -> _T:
    """Return what `call` returns, or raise what it raises, on a thread of its own."""
    outcome: Future[_T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # a panic of a library's is no Exception; it is raised again below
            outcome.set_exception(error)

    start_deep(run)
    return outcome.result()


@atexit.register
def _await_started() -> None:
    until_s = time.monotonic() + END_WITHIN_S
    for thread in list(_started):
        thread.join(max(0.0, until_s - time.monotonic()))
