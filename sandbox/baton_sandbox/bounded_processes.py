"""Runs tasks in processes that end when a task exceeds its limits.

Threads call `run` and wait in it. A process that has ended is replaced in milliseconds: a fork server of its
own, which loads what tasks need once, makes them. Nothing of this process is copied into them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import weakref
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from multiprocessing import Pipe, reduction
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any, Final

from baton_sandbox.fork_server import DONE, FAILED, READY, REUSABLE
from baton_sandbox.process_limits import ProcessLimits

START_WITHIN_S: Final = 120.0
"""The first process comes once the fork server has loaded what tasks need."""
_MARGIN_S: Final = 10.0
"""The process ends itself; this is how much later it is given up on."""
_MAX_STARTS: Final = 2
_KEPT_VARIABLES: Final = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TZ")
"""A fork server gets no others: the rest of the environment holds secrets."""
_ONE_THREAD: Final = {"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class TaskEndedError(Exception):
    """A task exceeded its limits, or its process crashed."""

    def __init__(self, limits: ProcessLimits, *, is_overdue: bool = False) -> None:
        super().__init__(f"it takes more than {limits}")
        self.is_overdue = is_overdue
        """True if all of `wall_s` has passed: other work on the machine may be the reason."""


class TaskFailedError(Exception):
    """A task raised an unexpected exception."""


class ProcessesUnavailableError(Exception):
    """No process is available: they are closed, or the fork server does not start."""


class BoundedProcesses:
    """Processes for one kind of task. All methods are safe to call from any thread.

    Args:
        target: `module:function`, called in the fork server with `settings`; returns the function of a task.
        settings: what JSON can hold.
    """

    def __init__(self, target: str, settings: Mapping[str, Any]) -> None:
        self._arguments = (target, json.dumps(dict(settings)))
        self._lock = Lock()
        self._server: _ForkServer | None = None
        self._idle: defaultdict[ProcessLimits, list[Connection]] = defaultdict(list)
        self._is_closed = False

    def run(self, task: bytes, limits: ProcessLimits) -> bytes:
        """Run a task in a process within limits, and return its result.

        Raises:
            TaskEndedError: it exceeded its limits.
            TaskFailedError: it raised an exception, which the text names.
            ProcessesUnavailableError: no process is available.
        """
        connection = self._acquire(limits)
        began_s = time.monotonic()
        try:
            connection.send_bytes(task)
            if not connection.poll(limits.wall_s + _MARGIN_S):
                raise TimeoutError
            answer = connection.recv_bytes()
        except (OSError, EOFError):
            connection.close()
            self._raise_if_closed()
            raise TaskEndedError(limits, is_overdue=time.monotonic() - began_s >= limits.wall_s) from None
        kind, is_reusable, content = answer[:1], answer[1:2] == REUSABLE, answer[2:]
        self._release(connection, limits if is_reusable else None)
        if kind == FAILED:
            raise TaskFailedError(content.decode(errors="replace"))
        if kind != DONE:
            raise TaskEndedError(limits)
        return content

    def close(self) -> None:
        """End all processes; tasks that they are at fail."""
        with self._lock:
            self._is_closed = True
            server, self._server = self._server, None
            idle = [connection for several in self._idle.values() for connection in several]
            self._idle.clear()
        for connection in idle:
            connection.close()
        if server is not None:
            server.close()

    @property
    def fork_server_pid(self) -> int | None:
        """The process that makes the others; None before the first task."""
        return None if self._server is None else self._server.pid

    def _raise_if_closed(self) -> None:
        if self._is_closed:
            raise ProcessesUnavailableError("the process shuts down")

    def _acquire(self, limits: ProcessLimits) -> Connection:
        """Return a connection to a process that waits for a task."""
        for _ in range(_MAX_STARTS):
            with self._lock:
                self._raise_if_closed()
                while self._idle[limits]:
                    connection = self._idle[limits].pop()
                    if not connection.poll(0):
                        return connection
                    connection.close()  # its end came while it was idle
                if self._server is None:
                    self._server = _ForkServer(self._arguments)
                server = self._server
            if (fresh := server.fork(limits)) is not None:
                return fresh
            if server.is_alive:
                raise ProcessesUnavailableError("the system has no room for another process")
            with self._lock:
                if self._server is server:
                    self._server = None
            server.close()
        raise ProcessesUnavailableError("its fork server does not start")

    def _release(self, connection: Connection, limits: ProcessLimits | None) -> None:
        """Keep a process for other tasks of these limits; None ends it."""
        with self._lock:
            if limits is not None and not self._is_closed:
                self._idle[limits].append(connection)
                return
        connection.close()


class _ForkServer:
    """The fork server of one kind of task. It ends when this end of its connection is closed."""

    def __init__(self, arguments: tuple[str, ...]) -> None:
        self._control, theirs = Pipe()
        self._lock = Lock()
        inherited = {name: value for name, value in os.environ.items() if name in _KEPT_VARIABLES}
        path = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "baton_sandbox.fork_server", str(theirs.fileno()), *arguments],
            env={**inherited, **_ONE_THREAD, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"},
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            process_group=0,  # a terminal's interrupt is for this process alone, which ends its others
        )
        theirs.close()
        self._end = weakref.finalize(self, _end, self._process, self._control, os.getpid())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def fork(self, limits: ProcessLimits) -> Connection | None:
        """Return a connection to a new process; None where the fork server has ended."""
        ours, theirs = Pipe()
        try:
            ours.send_bytes(json.dumps(asdict(limits)).encode())
            with self._lock:
                reduction.send_handle(self._control, theirs.fileno(), self.pid)
            theirs.close()
            if ours.poll(START_WITHIN_S) and ours.recv_bytes() == READY:
                return ours
        except (OSError, EOFError):
            pass
        theirs.close()
        ours.close()
        return None

    def close(self) -> None:
        """End it and all that it has made."""
        self._end()


def _end(process: subprocess.Popen[bytes], control: Connection, owner_pid: int) -> None:
    """End a fork server, unless this process is a fork of its owner, which still needs it."""
    if os.getpid() != owner_pid:
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    control.close()
