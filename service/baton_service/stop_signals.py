"""Signals of a process that ends in good order: the first one asks, the second one ends it at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Final

from baton_service.ending_signals import end_at

TERMINAL_SIGNALS: Final = (signal.SIGINT, signal.SIGHUP)
"""Signals of a terminal, for Ctrl-C and for its end, which reach all processes started there."""
_SIGNALS: Final = (signal.SIGTERM, *TERMINAL_SIGNALS)
DEFAULT_SHUTDOWN_TIMEOUT_S: Final = 30.0
"""Time that a stopping process gives requests to end or to migrate."""
_is_left_to_parent: Final = Event()


def leave_to_parent() -> None:
    """Leave the terminal's signals, and what comes after the first SIGTERM, to the parent that sends it."""
    _is_left_to_parent.set()
    for number in TERMINAL_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def on_first_signal(call: Callable[[], object]) -> Iterator[None]:
    """Have the running loop call `call` at the first signal; from then on signals end this process.

    A process that has left them to its parent is ended by the parent alone: where a service manager signals
    all processes, the parent's own signal to stop is the second one, and may not cut what still runs.
    A signal that is ignored stays ignored: those of a terminal reach a launcher's children too, which leave
    them to it.
    Of two such blocks, one in the other, the inner one counts, and none once it is left.
    """
    loop = asyncio.get_running_loop()
    taken = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]

    def on_signal() -> None:
        for number in taken:
            loop.remove_signal_handler(number)
            if _is_left_to_parent.is_set():
                signal.signal(number, signal.SIG_IGN)
            else:
                end_at(number)
        call()

    for number in taken:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in taken:
            loop.remove_signal_handler(number)
