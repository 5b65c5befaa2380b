"""Ctrl-C of a block that is not to be cut."""

from __future__ import annotations

import signal
import threading

from baton_service.process import interrupts_deferred


def test_an_interrupt_comes_at_the_end_of_the_block() -> None:
    assert undivided(1) == (1, KeyboardInterrupt)


def test_a_second_interrupt_cuts_the_block() -> None:
    assert undivided(2) == (0, KeyboardInterrupt)


def test_an_interrupt_is_not_lost_with_an_error() -> None:
    assert undivided(1, ValueError("on purpose")) == (1, KeyboardInterrupt)


def undivided(num_interrupts: int, error: Exception | None = None) -> tuple[int, type[BaseException]]:
    """Interrupt a block; returns the number of its ends, and what came of it."""
    num_ended = 0
    try:
        with interrupts_deferred():
            for _ in range(num_interrupts):
                signal.raise_signal(signal.SIGINT)
            num_ended += 1
            if error:
                raise error
    except BaseException as raised:
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        return num_ended, type(raised)
    raise AssertionError("it was interrupted")


def test_other_threads_leave_interrupts_alone() -> None:
    found: list[object] = []

    def run() -> None:
        with interrupts_deferred():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]
