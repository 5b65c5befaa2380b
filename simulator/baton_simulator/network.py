"""The network between nodes: datagrams, ordered streams and bulk copies, with what goes wrong on each.

A datagram may be lost, repeated, delayed and so overtaken. A stream keeps its order and loses nothing while
it lasts, as TCP does; a partition holds its frames up. Bulk copies share the links of both ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final

from baton_simulator.clock import Action, Clock

_MIN_DELAY_S: Final = 0.0001
_RETRANSMIT_S: Final = 0.2
"""Longest time in which a stream notices that a partition is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """The permanent faults of a network: probabilities per message, and delays in seconds."""

    loss: float = 0.0
    """Probability for a datagram."""
    repeat: float = 0.0
    """Probability for a datagram."""
    stream_break: float = 0.0
    """Probability that a stream breaks, for each of its frames."""
    max_delay_s: float = 0.01
    bandwidth: float = 0.0
    """Blocks per second that a node's link carries each way; 0 does not limit it."""


class Network:
    """Between nodes by name. `links_down` are ordered pairs: a link may be down one way only."""

    def __init__(self, clock: Clock, rng: Random, weather: Weather) -> None:
        self.weather = weather
        self._clock, self._rng = clock, rng
        self._links_down: dict[tuple[str, str], int] = {}
        self._held: list[tuple[tuple[str, str], Action]] = []
        self._resets: dict[tuple[str, str], int] = {}
        self._busy_until: dict[str, float] = {}

    def is_up(self, source: str, target: str) -> bool:
        return (source, target) not in self._links_down

    def take_down(self, source: str, target: str) -> None:
        """Cut one way; as often as it is cut it has to be mended."""
        link = (source, target)
        self._links_down[link] = self._links_down.get(link, 0) + 1

    def mend(self, source: str, target: str) -> None:
        link = (source, target)
        self._links_down[link] -= 1
        if self._links_down[link]:
            return
        del self._links_down[link]
        held = [action for one, action in self._held if one == link]
        self._held = [(one, action) for one, action in self._held if one != link]
        for action in held:
            self._clock.after(self._rng.uniform(0.0, _RETRANSMIT_S), action)

    def when_up(self, source: str, target: str, action: Action) -> None:
        """Run `action` now, or some time after the link is mended."""
        if self.is_up(source, target):
            action()
        else:
            self._held.append(((source, target), action))

    def reset(self, one: str, other: str) -> None:
        """Lose all datagrams on their way between two nodes, as a connection does that is made anew."""
        for link in ((one, other), (other, one)):
            self._resets[link] = self._resets.get(link, 0) + 1

    def send(self, source: str, target: str, deliver: Action) -> None:
        """Send a datagram; it arrives once, twice or never."""
        weather, rng, link = self.weather, self._rng, (source, target)
        resets = self._resets.get(link, 0)

        def arrive() -> None:
            if self.is_up(source, target) and self._resets.get(link, 0) == resets:
                deliver()

        for _ in range(1 + (rng.random() < weather.repeat)):
            if rng.random() >= weather.loss:
                self._clock.after(self.delay_s(), arrive)

    def breaks_stream(self) -> bool:
        """Return True if a stream breaks with this frame."""
        probability = self.weather.stream_break
        return probability > 0.0 and self._rng.random() < probability

    def delay_s(self) -> float:
        return _MIN_DELAY_S + self._rng.random() * self.weather.max_delay_s

    def carry_s(self, source: str, target: str, num_blocks: int) -> float:
        """Take a place on both links for that many blocks; returns how long until they are over."""
        if not self.weather.bandwidth:
            return 0.0
        now = self._clock.now
        begin = max(now, self._busy_until.get(f"{source}>", 0.0), self._busy_until.get(f">{target}", 0.0))
        end = begin + num_blocks / self.weather.bandwidth
        self._busy_until[f"{source}>"] = self._busy_until[f">{target}"] = end
        return end - now


Receiver = Callable[["Stream", Any], None]


@dataclass(slots=True, kw_only=True)
class _End:
    """One end of a stream, and what is on its way to it."""

    name: str
    receive: Receiver
    coming: deque[Any]
    arrives_at: float = 0.0
    num_held: int = 0
    has_heard: bool = False


class Stream:
    """An ordered connection between two nodes. `BROKEN` and `ENDED` come last, and then nothing."""

    def __init__(
        self, clock: Clock, network: Network, dialer: str, receive: Receiver, target: str, accept: Receiver
    ) -> None:
        self._clock, self._network = clock, network
        self._ends = {
            dialer: _End(name=dialer, receive=receive, coming=deque()),
            target: _End(name=target, receive=accept, coming=deque()),
        }
        self.dialer, self.target = dialer, target
        self.is_cut = False
        """True if nothing more can be sent on it."""

    def send(self, sender: str, frame: Any) -> None:
        """Queue a frame for the other end; lost once the stream is cut."""
        if not self.is_cut:
            self._put(self._other(sender), frame)

    def end(self, sender: str) -> None:
        """Say farewell: the other end hears of it after all that was sent."""
        if not self.is_cut:
            self.is_cut = True
            self._put(self._other(sender), ENDED)

    def crash(self, sender: str) -> None:
        """One end is gone; the other hears of it, after what was on its way."""
        if self.is_cut:
            return
        self.is_cut = True
        other = self._other(sender)
        if sender == self.dialer and not other.has_heard:
            other.coming.clear()  # a connection that was never made leaves nothing behind
        else:
            self._put(other, BROKEN)

    def break_(self) -> None:
        """Lose what is on its way, and let both ends hear of it."""
        if self.is_cut:
            return
        self.is_cut = True
        for end in self._ends.values():
            end.coming.clear()
            end.coming.append(BROKEN)
            self._clock.after(self._network.delay_s(), partial(self._arrive, end))

    def _other(self, name: str) -> _End:
        return self._ends[self.target if name == self.dialer else self.dialer]

    def _put(self, end: _End, frame: Any) -> None:
        if self._network.breaks_stream():
            self.break_()
            return
        end.coming.append(frame)
        end.arrives_at = max(end.arrives_at, self._clock.now + self._network.delay_s())
        self._clock.after(end.arrives_at - self._clock.now, lambda: self._arrive(end))

    def _arrive(self, end: _End) -> None:
        """Deliver the next frame, unless a partition holds it or an earlier one up."""
        if not self._network.is_up(self._other(end.name).name, end.name):
            end.num_held += 1
            if end.num_held == 1:
                self._network.when_up(self._other(end.name).name, end.name, lambda: self._release(end))
        elif end.num_held:
            end.num_held += 1
        elif end.coming:
            end.has_heard = True
            end.receive(self, end.coming.popleft())

    def _release(self, end: _End) -> None:
        if not self._network.is_up(self._other(end.name).name, end.name):
            self._network.when_up(self._other(end.name).name, end.name, lambda: self._release(end))
            return
        num_held, end.num_held = end.num_held, 0
        for _ in range(min(num_held, len(end.coming))):
            end.has_heard = True
            end.receive(self, end.coming.popleft())


ENDED: Final = "the stream was ended"
BROKEN: Final = "the stream is broken"
