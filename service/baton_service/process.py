"""Process-wide settings of every Baton process: its name, its end, and its reports to its starter."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final, TypeVar

from setproctitle import setproctitle

from baton_core.errors import BatonError, ErrorCode, InvalidConfigError
from baton_service.logs import STDERR
from baton_service.stop_signals import TERMINAL_SIGNALS, leave_to_parent, on_first_signal

T = TypeVar("T")
EXIT_BAD_CONFIG: Final = 2
"""Exit code of an error that a restart would not fix: a setting, the model or the pairing is wrong."""
API_KEY_VARIABLE: Final = "BATON_API_KEY"
"""Environment variable with the key of a router's clients, for want of `--api-key`."""
_PR_SET_PDEATHSIG: Final = 1
_READ_WITHIN_MS: Final = 2000


def name_process(role: str) -> None:
    """Show this process as `baton ROLE` in process listings."""
    setproctitle(f"baton {role}")


def module_command(module: str) -> tuple[str, ...]:
    """Return the command of a module in a process of its own, whose environment is to be `child_environment`.

    No file of the current folder comes before what the module imports.
    """
    return (sys.executable, "-P", "-m", module)


def child_environment() -> dict[str, str]:
    """Return an environment in which Python imports as this process does, then from the current folder."""
    folders = (os.path.abspath(one) for one in (*sys.path, "") if os.path.exists(one or os.curdir))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(folders))}


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel end this process when `parent_pid`, which started it, is gone.

    Signals of the terminal, which reach both, and a second one to stop are left to the parent.
    """
    leave_to_parent()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINAL_SIGNALS)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def exit_without_reader() -> Iterator[None]:
    """End with exit code 1 once standard output has no reader any more, and say so where it is full.

    Source: the note on SIGPIPE in the documentation of Python's `signal`.
    """
    try:
        try:
            yield
        finally:
            _flush_output()
    except BrokenPipeError:
        if _has_reader(sys.stdout.fileno()):
            raise
        _drop_output()
        raise SystemExit(1) from None


def _flush_output() -> None:
    """Write what is left, also of a write that failed before."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _drop_output()
        print_error(f"standard output cannot be written: {error.strerror}")
        raise SystemExit(1) from None


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more


def _has_reader(file: int) -> bool:
    poll = select.poll()
    poll.register(file, 0)  # a pipe without a reader always reports an error
    return not poll.poll(0)


def print_error(text: str) -> None:
    """Write a line to standard error, unless its reader is stuck."""
    poll = select.poll()
    poll.register(STDERR, select.POLLOUT)
    if poll.poll(_READ_WITHIN_MS):
        sys.stderr.write(f"{text}\n")


def report(file_descriptor: int | None, **facts: object) -> None:
    """Write the first JSON line to the process that started this one.

    Raises:
        InvalidConfigError: it is not open, or not read.
    """
    if file_descriptor is None:
        return
    try:
        with os.fdopen(file_descriptor, "w", closefd=False) as pipe:
            pipe.write(json.dumps(facts) + "\n")
    except OSError as error:
        raise InvalidConfigError(
            f"--report-fd is {file_descriptor}, which cannot be written ({error.strerror}); "
            "allowed: a pipe that is open and read"
        ) from error


def report_update(file_descriptor: int | None, **facts: object) -> None:
    """Write a further line, unless it has no reader any more; never wait for a reader."""
    if file_descriptor is not None:
        with suppress(OSError):
            os.set_blocking(file_descriptor, False)
            os.write(file_descriptor, f"{json.dumps(facts)}\n".encode())


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold back the terminal's signals, also from processes begun meanwhile, until they `die_with_parent`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, TERMINAL_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINAL_SIGNALS)


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Take the first Ctrl-C at the end of the block, and a second one at once.

    Does nothing outside of the main thread, which alone takes them.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    is_deferred = False

    def defer(number: int, frame: FrameType | None) -> None:
        nonlocal is_deferred
        is_deferred = not is_deferred
        if not is_deferred:
            handler(number, frame)

    signal.signal(signal.SIGINT, defer)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if is_deferred:
            handler(signal.SIGINT, None)


@contextmanager
def importing() -> Iterator[None]:
    """Import without garbage collection, which takes a tenth of torch's import time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def run_until_signal(work: Coroutine[Any, Any, T], *, ends_with_stdin: bool = False) -> T | None:
    """Run `work` to its result, or until a signal to stop cancels it (None); what it raises is raised.

    A second signal ends the process at once. With `ends_with_stdin` the end of standard input, whose other
    end the parent holds, cancels `work` too.

    Raises:
        InvalidConfigError: standard input is a file, which has no other end.
    """
    gc.freeze()  # What is loaded by now stays: searching torch's modules stops a loop for 0.2 s, each time.
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)

    def stop() -> None:
        if not task.cancelling():  # a second cancellation would cut the stop
            task.cancel()

    if ends_with_stdin:
        _watch_stdin(stop)
    try:
        with on_first_signal(stop):
            return await task
    except asyncio.CancelledError:
        return None
    finally:
        if ends_with_stdin:
            loop.remove_reader(sys.stdin.fileno())


def _watch_stdin(stop: Callable[[], object]) -> None:
    """Call `stop` when standard input ends; what can be read before is dropped."""
    loop = asyncio.get_running_loop()
    file = sys.stdin.fileno()

    def on_readable() -> None:
        if not os.read(file, 4096):
            loop.remove_reader(file)  # an end stays readable
            stop()

    try:
        loop.add_reader(file, on_readable)
    except PermissionError:
        stop()
        raise InvalidConfigError(
            "--exit-with-stdin is given, but standard input is a file; allowed: a pipe or a terminal"
        ) from None


def exit_code(error: BatonError) -> int:
    """Return the exit code of a process that ends with `error`."""
    hopeless = (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_MODEL, ErrorCode.INCOMPATIBLE_WORKER)
    return EXIT_BAD_CONFIG if error.code in hopeless else 1
