"""Exact sequences of one end of a session; the peer is played by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from baton_core.errors import InvalidConfigError
from baton_core.sessions.session import Data, Heartbeat, SessionMachine, SessionTimings
from baton_core.sessions.session_state import TERMINAL, TRANSITIONS, SessionInput, SessionState, next_state

Machine = SessionMachine[str, str]


def make_machine(*, max_unacknowledged: int = 4096) -> Machine:
    return SessionMachine("worker w1", SessionTimings(max_unacknowledged=max_unacknowledged))


def connected(*, max_unacknowledged: int = 4096) -> Machine:
    """A machine at time 0 whose first heartbeat is written."""
    machine = make_machine(max_unacknowledged=max_unacknowledged)
    machine.on_connected(0.0, 7, 0)
    assert machine.take_frames(0.0, 10) == (Heartbeat(0, 0),)
    return machine


def with_sent(*messages: str) -> Machine:
    """A connected machine that wrote `messages` at time 0."""
    machine = connected()
    for message in messages:
        machine.send(message)
    assert len(machine.take_frames(0.0, 100)) == len(messages)
    return machine


def test_messages_are_numbered_when_they_are_written() -> None:
    machine = make_machine()
    machine.send("a")
    assert not machine.has_frames
    assert machine.take_frames(0.0, 10) == ()
    machine.on_connected(0.0, 7, 0)
    machine.send("b")
    machine.send("c")
    assert machine.take_frames(0.0, 3) == (Heartbeat(0, 0), Data(1, "a"), Data(2, "b"))
    assert machine.has_frames
    assert machine.take_frames(0.0, 3) == (Data(3, "c"),)
    assert not machine.has_frames


def test_only_the_next_number_is_delivered() -> None:
    machine = connected()
    assert machine.on_frame(0.1, Data(2, "b")) == ()
    assert machine.on_frame(0.1, Data(1, "a")) == ("a",)
    assert machine.on_frame(0.1, Data(1, "a")) == ()
    assert machine.on_frame(0.1, Data(2, "b")) == ("b",)
    assert machine.received == 2


def test_heartbeats_are_due_every_half_second_and_show_what_was_received() -> None:
    machine = connected()
    machine.on_frame(0.2, Data(1, "a"))
    assert machine.next_deadline() == 0.5
    machine.on_deadline(0.4)
    assert not machine.has_frames
    machine.on_deadline(0.5)
    assert machine.take_frames(0.5, 10) == (Heartbeat(0, 1),)
    assert machine.next_deadline() == 1.0


def test_a_heartbeat_in_waiting_does_not_keep_the_deadline_in_the_past() -> None:
    machine = connected()
    machine.on_deadline(0.5)
    assert machine.next_deadline() == 1.0
    machine.on_deadline(1.0)
    assert machine.take_frames(1.0, 10) == (Heartbeat(0, 0),)


def test_a_gap_brings_the_next_heartbeat_forward() -> None:
    machine = connected()
    machine.on_frame(0.1, Data(2, "b"))
    assert machine.next_deadline() == pytest.approx(0.225)
    machine = connected()
    machine.on_frame(0.2, Heartbeat(3, 0))
    assert machine.next_deadline() == pytest.approx(0.325)


def test_a_quarter_of_the_limit_is_acknowledged_at_once() -> None:
    machine = connected(max_unacknowledged=8)
    machine.on_frame(0.1, Data(1, "a"))
    assert not machine.has_frames
    machine.on_frame(0.1, Data(2, "b"))
    assert machine.take_frames(0.1, 10) == (Heartbeat(0, 2),)


def test_a_gap_without_progress_over_two_heartbeats_is_written_again() -> None:
    machine = with_sent("a", "b", "c")
    machine.on_frame(0.5, Heartbeat(0, 1))
    assert not machine.has_frames
    machine.on_frame(1.0, Heartbeat(0, 1))
    assert machine.has_frames
    assert machine.take_frames(1.0, 10)[1:] == (Data(2, "b"), Data(3, "c"))
    machine.on_frame(1.1, Heartbeat(0, 3))
    assert machine.take_frames(1.1, 10) == ()


def test_what_was_written_after_the_last_heartbeat_is_not_missed_yet() -> None:
    machine = with_sent()
    machine.on_frame(0.4, Heartbeat(0, 0))
    machine.send("a")
    machine.take_frames(0.45, 10)
    machine.on_frame(0.46, Heartbeat(0, 0))
    assert not machine.has_frames


def test_an_acknowledgement_that_was_overtaken_changes_nothing() -> None:
    machine = with_sent("a", "b")
    machine.on_frame(0.1, Heartbeat(0, 2))
    machine.on_frame(0.1, Heartbeat(0, 1))
    machine.on_frame(0.1, Heartbeat(0, 1))
    assert machine.take_frames(0.1, 10) == ()
    machine.check_invariants()


def test_a_late_acknowledgement_shortens_what_is_written_again() -> None:
    machine = with_sent("a", "b", "c")
    machine.on_frame(0.4, Heartbeat(0, 0))
    machine.on_frame(0.45, Heartbeat(0, 0))
    machine.on_frame(0.46, Heartbeat(0, 2))
    assert machine.take_frames(0.46, 10) == (Data(3, "c"),)


def test_a_resumed_stream_goes_on_after_what_the_peer_has() -> None:
    machine = with_sent("a", "b", "c")
    machine.on_frame(0.1, Data(1, "x"))
    machine.on_disconnected(0.2)
    machine.send("d")
    assert machine.take_frames(0.3, 10) == ()
    assert machine.on_frame(0.3, Data(2, "y")) == ()
    machine.on_connected(1.1, 7, 2)
    assert machine.take_frames(1.1, 10) == (Heartbeat(2, 1), Data(3, "c"), Data(4, "d"))
    assert machine.on_frame(1.1, Data(2, "y")) == ("y",)
    assert machine.state is SessionState.CONNECTED


def test_a_second_stream_replaces_one_whose_end_went_unnoticed() -> None:
    machine = with_sent("a")
    machine.on_connected(0.3, 7, 0)
    assert machine.take_frames(0.3, 10) == (Heartbeat(0, 0), Data(1, "a"))


def test_a_stream_that_comes_too_late_ends_the_session() -> None:
    machine = connected()
    machine.on_disconnected(1.0)
    assert machine.next_deadline() == 2.0
    machine.on_connected(2.0, 7, 0)
    assert machine.reason == "worker w1 did not resume its broken stream within 1 s"
    assert machine.next_deadline() is None


def test_silence_ends_the_session() -> None:
    machine = connected()
    machine.on_frame(0.3, Heartbeat(0, 0))
    for now in (0.5, 1.0, 1.5):
        machine.on_deadline(now)
    assert machine.next_deadline() == pytest.approx(1.8)
    machine.on_deadline(1.75)
    assert not machine.is_over
    machine.on_deadline(1.8)
    assert machine.is_over
    assert machine.reason == "no frame from worker w1 for 1.5 s"


def test_a_pause_of_this_end_is_not_taken_for_silence_of_the_peer() -> None:
    machine = connected()
    machine.on_deadline(1.6)
    assert not machine.is_over
    machine.on_deadline(2.0)
    assert not machine.is_over
    machine.on_deadline(2.1)
    assert machine.reason == "no frame from worker w1 for 1.5 s"


def test_another_epoch_ends_the_session() -> None:
    machine = connected()
    machine.on_connected(0.1, 8, 0)
    assert machine.is_over
    assert machine.reason == "worker w1 restarted"
    assert machine.peer_epoch == 7


@pytest.mark.parametrize("received", [0, 3])
def test_a_peer_that_counts_otherwise_ends_the_session(received: int) -> None:
    machine = with_sent("a", "b")
    machine.on_frame(0.1, Heartbeat(0, 1))
    machine.on_disconnected(0.1)
    machine.on_connected(0.2, 7, received)
    assert machine.reason == f"worker w1 says that it received message {received}; allowed: 1 to 2"


def test_an_acknowledgement_of_what_was_never_written_ends_the_session() -> None:
    machine = with_sent("a")
    machine.send("never written")
    machine.on_frame(0.1, Heartbeat(0, 2))
    assert machine.reason == "worker w1 says that it received message 2; allowed: 0 to 1"


def test_too_many_messages_in_waiting_end_the_session() -> None:
    machine = connected(max_unacknowledged=3)
    for message in ("a", "b"):
        machine.send(message)
    machine.take_frames(0.0, 1)
    machine.send("c")
    assert not machine.is_over
    machine.send("d")
    assert machine.reason == "more than 3 messages wait for worker w1"
    machine.send("e")
    assert machine.take_frames(0.1, 10) == ()
    assert machine.on_frame(0.1, Data(1, "x")) == ()
    machine.check_invariants()


def test_too_many_bytes_in_waiting_end_the_session() -> None:
    machine: Machine = SessionMachine("worker w1", SessionTimings(max_unacknowledged_bytes=5), size=len)
    machine.on_connected(0.0, 7, 0)
    for message in ("four", "many more"):
        machine.send(message)
    assert len(machine.take_frames(0.0, 10)) == 3, "the last may be as large as it likes"
    machine.on_frame(0.1, Heartbeat(0, 2))
    machine.send("again five")
    assert not machine.is_over, "what was received waits no longer"
    machine.send("x")
    assert machine.reason == "more than 5 bytes wait for worker w1"
    machine.check_invariants()


def join(earlier: str, later: str) -> str | None:
    return earlier + later if later.islower() else None


def test_messages_that_were_never_written_merge() -> None:
    machine: Machine = SessionMachine("worker w1", merge=join)
    for message in ("a", "b", "C", "d", "e"):
        machine.send(message)
    machine.on_connected(0.0, 7, 0)
    assert machine.take_frames(0.0, 2) == (Heartbeat(0, 0), Data(1, "ab"))
    machine.send("f")
    assert machine.take_frames(0.0, 10) == (Data(2, "Cdef"),)
    machine.send("g")
    assert machine.take_frames(0.0, 10) == (Data(3, "g"),)


def test_a_merged_message_takes_no_more_room() -> None:
    machine: Machine = SessionMachine("worker w1", SessionTimings(max_unacknowledged=1), join, len)
    for message in ("a", "b", "c"):
        machine.send(message)
    machine.check_invariants()
    assert not machine.is_over


def reach(state: SessionState) -> Machine:
    machine = make_machine(max_unacknowledged=2)
    if state is SessionState.OVER:
        machine.close("closed")
    elif state is not SessionState.NEW:
        machine.on_connected(0.0, 7, 0)
        if state is SessionState.BROKEN:
            machine.on_disconnected(0.0)
    assert machine.state is state
    return machine


def overflow(machine: Machine) -> None:
    for message in ("a", "b", "c"):
        machine.send(message)


DRIVERS: dict[SessionInput, Callable[[Machine], None]] = {
    SessionInput.STREAM_UP: lambda machine: machine.on_connected(0.1, 7, 0),
    SessionInput.STREAM_DOWN: lambda machine: machine.on_disconnected(0.1),
    SessionInput.PEER_SILENT: lambda machine: (machine.on_deadline(0.9), machine.on_deadline(1.5))[1],
    SessionInput.NOT_RESUMED: lambda machine: machine.on_deadline(1.1),
    SessionInput.PEER_RESTARTED: lambda machine: machine.on_connected(0.1, 8, 0),
    SessionInput.PEER_DIVERGED: lambda machine: machine.on_connected(0.1, 7, 9),
    SessionInput.OVERFLOW: overflow,
    SessionInput.CLOSE: lambda machine: machine.close("closed"),
}


@pytest.mark.parametrize("state", SessionState)
@pytest.mark.parametrize("cause", SessionInput)
def test_every_input_in_every_state_follows_the_table(state: SessionState, cause: SessionInput) -> None:
    if (state, cause) in TRANSITIONS:
        machine = reach(state)
        DRIVERS[cause](machine)
        assert machine.state is TRANSITIONS[state, cause]
        machine.check_invariants()
    else:
        with pytest.raises(RuntimeError, match=f"{cause} in state {state}"):
            next_state(state, cause)


def test_terminal_states_have_no_way_out() -> None:
    ways_out = {
        state: {target for (source, _), target in TRANSITIONS.items() if source is state}
        for state in SessionState
    }
    assert {state for state, targets in ways_out.items() if not targets} == TERMINAL


@pytest.mark.parametrize("state", SessionState)
def test_deadlines_exist_where_something_is_waited_for(state: SessionState) -> None:
    is_waiting = state in (SessionState.CONNECTED, SessionState.BROKEN)
    assert (reach(state).next_deadline() is not None) == is_waiting


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"heartbeat_s": 0.0}, "heartbeat_s is 0.0; allowed: over 0"),
        ({"dead_after_s": 0.5}, r"dead_after_s is 0.5; allowed: over heartbeat_s \(0.5\)"),
        ({"resume_within_s": -1.0}, "resume_within_s is -1.0; allowed: over 0"),
        ({"max_unacknowledged": 0}, "max_unacknowledged is 0; allowed: 1 or more"),
        ({"max_unacknowledged_bytes": 0}, "max_unacknowledged_bytes is 0; allowed: 1 or more"),
    ],
)
def test_timings_that_cannot_hold_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        SessionTimings(**values)  # type: ignore[arg-type]
