"""Two ends of a session over a network that loses, repeats, delays and reorders frames and breaks streams."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from baton_core.sessions.session import DEFAULT_TIMINGS, Data, Heartbeat, SessionMachine
from baton_core.sessions.session_state import SessionState

TICK_S = 0.05
NUM_MESSAGES = 60
ENDS_WITHIN_S = DEFAULT_TIMINGS.dead_after_s + DEFAULT_TIMINGS.resume_within_s + 2 * TICK_S
"""From the end of one side to the end of the other."""

Tokens = tuple[int, ...]
Frame = Data[Tokens] | Heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Probabilities per frame, and per tick for breaks; the network is perfect from `until_s` on."""

    lost: float = 0.0
    repeated: float = 0.0
    max_delay_s: float = 0.0
    broken: float = 0.0
    max_gap_s: float = 0.0
    """How long a broken stream stays away."""
    until_s: float = 10.0


def join(earlier: Tokens, later: Tokens) -> Tokens | None:
    return earlier + later if len(earlier) < 5 else None


@dataclass
class End:
    machine: SessionMachine[Tokens, Tokens]
    num_sent: int = 0
    received: list[int] = field(default_factory=list)
    on_the_way: list[tuple[float, Frame]] = field(default_factory=list)
    """Frames for this end, with the time of their arrival."""
    over_at: float | None = None


class Cluster:
    """A worker that dials a router, one tick after the other."""

    def __init__(self, random: Random, faults: Faults) -> None:
        self.random = random
        self.faults = faults
        self.now = 0.0
        self.worker = End(SessionMachine("router", merge=join, size=len))
        self.router = End(SessionMachine("worker", size=len))
        self.dials_at = 0.0

    @property
    def ends(self) -> tuple[End, End]:
        return (self.worker, self.router)

    @property
    def is_faulty(self) -> bool:
        return self.now < self.faults.until_s

    def happens(self, probability: float) -> bool:
        return self.is_faulty and self.random.random() < probability

    def tick(self) -> None:
        if self.happens(self.faults.broken):
            self.break_stream()
        self.dial()
        for end, peer in (self.ends, self.ends[::-1]):
            self.deliver(end)
            end.machine.on_deadline(self.now)
            if end.num_sent < NUM_MESSAGES and self.random.random() < 0.5:
                end.machine.send((end.num_sent,))
                end.num_sent += 1
            for frame in end.machine.take_frames(self.now, self.random.randint(1, 8)):
                self.transmit(frame, peer)
            self.note_end(end, peer)
            end.machine.check_invariants()
        self.now += TICK_S

    def break_stream(self) -> None:
        """The worker notices; the router may learn of it only by the next stream."""
        if self.worker.machine.state is SessionState.CONNECTED:
            self.worker.machine.on_disconnected(self.now)
            self.dials_at = self.now + self.random.uniform(0, self.faults.max_gap_s)
            if self.router.machine.state is SessionState.CONNECTED and self.random.random() < 0.5:
                self.router.machine.on_disconnected(self.now)

    def dial(self) -> None:
        is_wanted = self.worker.machine.state in (SessionState.NEW, SessionState.BROKEN)
        if not is_wanted or self.now < self.dials_at or self.router.machine.is_over:
            return
        self.router.machine.on_connected(self.now, 1, self.worker.machine.received)
        if not self.router.machine.is_over:
            self.worker.machine.on_connected(self.now, 1, self.router.machine.received)

    def deliver(self, end: End) -> None:
        arrived = [frame for at, frame in end.on_the_way if at <= self.now]
        end.on_the_way = [(at, frame) for at, frame in end.on_the_way if at > self.now]
        if self.is_faulty and self.faults.max_delay_s:
            self.random.shuffle(arrived)
        for frame in arrived:
            for tokens in end.machine.on_frame(self.now, frame):
                end.received.extend(tokens)

    def transmit(self, frame: Frame, peer: End) -> None:
        """Frames of a stream that broke may still arrive: the worst that a network could do."""
        for _ in range(2 if self.happens(self.faults.repeated) else 1):
            if not self.happens(self.faults.lost):
                delay_s = self.random.uniform(0, self.faults.max_delay_s) if self.is_faulty else 0.0
                peer.on_the_way.append((self.now + delay_s, frame))

    def note_end(self, end: End, peer: End) -> None:
        if end.machine.is_over and end.over_at is None:
            end.over_at = self.now
            if peer.machine.state is SessionState.CONNECTED:
                peer.machine.on_disconnected(self.now)

    def run(self, until_s: float) -> None:
        while self.now < until_s:
            self.tick()
            for end, peer in (self.ends, self.ends[::-1]):
                assert end.received == list(range(len(end.received)))
                assert len(end.received) <= peer.num_sent


faults = st.builds(
    Faults,
    lost=st.floats(0, 0.4),
    repeated=st.floats(0, 0.4),
    max_delay_s=st.floats(0, 0.8),
    broken=st.floats(0, 0.1),
    max_gap_s=st.floats(0, 2.5),
)


@settings(deadline=None, max_examples=100)
@given(seed=st.integers(0, 2**32), faults=faults)
def test_every_message_arrives_once_in_order_or_the_session_ends_on_both_sides(
    seed: int, faults: Faults
) -> None:
    cluster = Cluster(Random(seed), faults)
    cluster.run(until_s=faults.until_s + 10.0)
    over = [end.over_at for end in cluster.ends]
    if over == [None, None]:
        assert [len(end.received) for end in cluster.ends] == [NUM_MESSAGES, NUM_MESSAGES]
    else:
        assert None not in over
        assert abs(over[0] - over[1]) <= ENDS_WITHIN_S


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32), broken=st.floats(0, 0.2), max_gap_s=st.floats(0, 1.8))
def test_a_session_whose_streams_come_back_in_time_loses_nothing(
    seed: int, broken: float, max_gap_s: float
) -> None:
    """A worker that the router does not miss at once must be back before the router calls it silent."""
    gap_s = min(max_gap_s, DEFAULT_TIMINGS.dead_after_s - DEFAULT_TIMINGS.heartbeat_s - 2 * TICK_S)
    cluster = Cluster(Random(seed), Faults(broken=broken, max_gap_s=gap_s))
    cluster.run(until_s=20.0)
    assert [end.machine.reason for end in cluster.ends] == ["", ""]
    assert [len(end.received) for end in cluster.ends] == [NUM_MESSAGES, NUM_MESSAGES]


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32), repeated=st.floats(0, 0.4), max_delay_s=st.floats(0, 0.8))
def test_delay_disorder_and_repetition_end_no_session(seed: int, repeated: float, max_delay_s: float) -> None:
    cluster = Cluster(Random(seed), Faults(repeated=repeated, max_delay_s=max_delay_s))
    cluster.run(until_s=20.0)
    assert [end.machine.reason for end in cluster.ends] == ["", ""]
    assert [len(end.received) for end in cluster.ends] == [NUM_MESSAGES, NUM_MESSAGES]
