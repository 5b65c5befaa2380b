from __future__ import annotations

import signal

import pytest

from baton.processes.process import interrupts_held, quiet_without_reader


def test_a_broken_pipe_other_than_standard_output_is_not_hushed_up() -> None:
    with pytest.raises(BrokenPipeError, match="of a worker"), quiet_without_reader():
        raise BrokenPipeError("of a worker")


@pytest.mark.parametrize("how", [signal.SIG_BLOCK, signal.SIG_UNBLOCK])
def test_interrupts_are_held_and_then_as_they_were(how: signal.Sigmasks) -> None:
    before = signal.pthread_sigmask(how, {signal.SIGINT})
    try:
        with interrupts_held():
            assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        assert (signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())) is (how is signal.SIG_BLOCK)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
