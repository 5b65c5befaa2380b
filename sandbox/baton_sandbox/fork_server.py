"""The program that makes bounded processes: `python -m baton_sandbox.fork_server FD TARGET SETTINGS`.

It loads what tasks need once, then forks a process for each connection that it is sent. It has one thread, so
that a fork is safe. When its parent is gone it ends, and its process group with it.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Final, TypeAlias

from baton_sandbox.process_limits import ProcessLimits, address_space_bytes, stop_timers

READY: Final = b"ready"
DONE: Final = b"d"
FAILED: Final = b"f"
OUT_OF_MEMORY: Final = b"m"
"""First byte of a reply."""
REUSABLE: Final = b"+"
SPENT: Final = b"."
"""Second byte of a reply: whether its process takes another task."""
_FRESH_SHARE: Final = 4
"""A process whose address space has grown by the bound over this takes no further task."""
_THREADS_END_WITHIN_S: Final = 1.0
Work: TypeAlias = Callable[[bytes], bytes]


def main(control_fd: str, target: str, settings: str) -> None:
    """Serve the parent at the other end of `control_fd` until it is gone.

    Args:
        target: `module:function`; called once with `settings`, it returns the function that does a task.
        settings: a JSON object, the function's keyword arguments.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no one waits for the forked processes
    control = Connection(int(control_fd))
    work = _load(target, settings)
    _wait_for_ended_threads()
    while True:
        try:
            connection_fd = reduction.recv_handle(control)
        except (EOFError, OSError):
            break
        with suppress(OSError):  # the system has no room for another process: the caller sees the end
            if os.fork() == 0:
                control.close()
                try:
                    _serve(Connection(connection_fd), work)
                finally:
                    os._exit(0)
        os.close(connection_fd)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)


def _load(target: str, settings: str) -> Work:
    module, _, name = target.partition(":")
    try:
        work: Work = getattr(importlib.import_module(module), name)(**json.loads(settings))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"

        def refuse(_: bytes) -> bytes:
            raise RuntimeError(reason)

        return refuse
    return work


def _wait_for_ended_threads() -> None:
    """Wait until the threads that loading has joined are gone: Python 3.12 warns of a fork beside one."""
    deadline_s = time.monotonic() + _THREADS_END_WITHIN_S
    while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < deadline_s:
        time.sleep(0.001)


def _serve(connection: Connection, work: Work) -> None:
    """Do tasks in a forked process, one after another; its limits come first."""
    with open(os.devnull, "wb") as nowhere:  # libraries' messages about untrusted text fill no log
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    limits = ProcessLimits(**json.loads(connection.recv_bytes()))
    before = address_space_bytes()
    limits.confine()
    connection.send_bytes(READY)
    for num_left in reversed(range(limits.num_tasks)):
        try:
            task = connection.recv_bytes()
        except (EOFError, OSError):
            return
        limits.start_timers()
        kind, content = _attempt(work, task)
        stop_timers()
        is_reusable = num_left and address_space_bytes() - before <= limits.memory_bytes // _FRESH_SHARE
        connection.send_bytes(kind + (REUSABLE if is_reusable else SPENT) + content)
        if not is_reusable:
            return


def _attempt(work: Work, task: bytes) -> tuple[bytes, bytes]:
    """Return the kind of a reply, and its content."""
    try:
        return DONE, work(task)
    except MemoryError:
        return OUT_OF_MEMORY, b""
    except BaseException as error:  # a panic of a library's is no Exception
        return FAILED, f"{type(error).__name__}: {error}".encode(errors="replace")[:1000]


if __name__ == "__main__":
    main(*sys.argv[1:])
