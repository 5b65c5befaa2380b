"""The LoRA adapters of one worker: which are loaded, who uses them, who waits for them.

At most so many are loaded at a time. One that nobody uses gives way to another, the least recently used
first, and pinned ones alone if all are. While all are in use, requests for others wait in their order.
Requests for loaded ones pass them, but no longer than `PATIENCE_S`: then whoever comes waits behind them, so
that a place becomes free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import Final

from baton_core.errors import InvalidRequestError
from baton_core.requests.adapter import Adapter
from baton_core.worker.worker_events import AdapterLoaded, DropAdapter, LoadAdapter, WorkerEffect

PATIENCE_S: Final = 2.0


@dataclass(slots=True, kw_only=True)
class _Entry:
    adapter: Adapter
    is_loaded: bool = False
    users: set[str] = field(default_factory=set)
    """Open requests with it."""
    numbers: set[int] = field(default_factory=set)
    """The numbers by which requests name it: equal adapters may have several, a number one adapter."""


class AdapterCache:
    """Requests come by `begin` and go by `drop`; between them their adapter stays loaded.

    Args:
        most: adapters that are loaded, or being loaded, at a time.
        within_s: time that the loading of one may take.
    """

    def __init__(self, most: int, within_s: float) -> None:
        self._most, self._within_s = most, within_s
        self._entries: dict[str, _Entry] = {}
        """Adapters that are loaded or being loaded, by digest, the least recently used first."""
        self._queue: dict[str, tuple[Adapter, float]] = {}
        """Requests that wait for a place, in order, each with the time since when."""
        self._deadlines: dict[str, float] = {}
        """Requests whose adapter is being loaded, in the order of their deadlines."""
        self._given_up: Counter[str] = Counter()
        """Loads that were given up and not answered yet, by digest: their answers come first."""
        self.load_s = 0.0
        """Time that the last one took to load; 0 before the first."""
        self._pinned: frozenset[int] = frozenset()
        """Numbers of adapters, which may be loaded anew with other weights."""
        self._digests: dict[str, str] = {}
        """The adapter of each open request that has one."""

    def __contains__(self, request_id: object) -> bool:
        """Say whether a request waits for its adapter."""
        return request_id in self._queue or request_id in self._deadlines

    @property
    def loaded(self) -> tuple[str, ...]:
        """Digests of the adapters that are loaded."""
        return tuple(digest for digest, entry in self._entries.items() if entry.is_loaded)

    @property
    def waiting_names(self) -> set[str]:
        """Names of the adapters that requests wait for."""
        loading = {entry.adapter.name for entry in self._entries.values() if not entry.is_loaded}
        return loading | {adapter.name for adapter, _ in self._queue.values()}

    @property
    def loading(self) -> tuple[str, ...]:
        """Digests of the adapters that are being loaded."""
        return tuple(digest for digest, entry in self._entries.items() if not entry.is_loaded)

    def pin(self, numbers: frozenset[int]) -> None:
        """Keep adapters loaded, once they are, by their numbers, and no longer those that were pinned before.

        Raises:
            InvalidRequestError: there are not so many places.
        """
        if len(numbers) > self._most:
            raise InvalidRequestError("pinned adapters", len(numbers), f"{self._most}, as max_cpu_loras says")
        self._pinned = numbers

    def require_place(self, adapter: Adapter | None) -> None:
        """Refuse an adapter while others are pinned in all places.

        Requests that have begun elsewhere are not asked for it: theirs takes the place of a pinned one.

        Raises:
            InvalidRequestError: naming it.
        """
        if adapter is None or adapter.number in self._pinned:
            return
        if len(self._pinned) >= self._most:
            allowed = f"the adapters that are pinned in all {self._most} places of max_cpu_loras"
            raise InvalidRequestError("lora_request", adapter.name, allowed)

    def begin(self, now: float, request_id: str, adapter: Adapter) -> None:
        """Take a request, which waits unless its adapter is loaded."""
        self._digests[request_id] = adapter.digest
        for digest, other in self._entries.items():
            if digest != adapter.digest:
                other.numbers.discard(adapter.number)
        entry = self._entries.get(adapter.digest)
        if entry is not None and entry.is_loaded and not self._is_impatient(now):
            self._use(request_id, adapter)
        else:
            self._queue[request_id] = (adapter, now)

    def end(self, loaded: AdapterLoaded) -> tuple[str, ...]:
        """Take an answer; returns the requests that waited for it, which need not wait any longer."""
        if self._given_up[loaded.digest]:
            self._given_up -= Counter((loaded.digest,))
            return ()
        entry = self._entries.get(loaded.digest)
        if entry is None or entry.is_loaded:
            return ()
        entry.is_loaded = True
        self.load_s = loaded.seconds or self.load_s
        for request_id in entry.users:
            del self._deadlines[request_id]
        if loaded.error:
            del self._entries[loaded.digest]
        return tuple(sorted(entry.users))

    def drop(self, request_id: str) -> None:
        """Forget a request that is over."""
        digest = self._digests.pop(request_id, None)
        self._queue.pop(request_id, None)
        self._deadlines.pop(request_id, None)
        if digest is not None and (entry := self._entries.get(digest)) is not None:
            entry.users.discard(request_id)

    def advance(self, now: float, in_flight: Set[str]) -> tuple[list[WorkerEffect], list[str]]:
        """Give places to those that wait, as far as there are any; steps in flight use some adapters.

        Returns what is to be done, and the requests whose adapter is loaded already.
        """
        effects: list[WorkerEffect] = []
        ready: list[str] = []
        for request_id, (adapter, since_s) in list(self._queue.items()):
            if adapter.digest not in self._entries:
                if len(self._entries) >= self._most:
                    if (idle := self._idle(in_flight)) is not None:
                        del self._entries[idle]
                        effects.append(DropAdapter(digest=idle))
                    elif now - since_s > PATIENCE_S:
                        break
                    else:
                        continue
                self._entries[adapter.digest] = _Entry(adapter=adapter)
                effects.append(LoadAdapter(adapter=adapter))
            del self._queue[request_id]
            self._use(request_id, adapter)
            if self._entries[adapter.digest].is_loaded:
                ready.append(request_id)
            else:
                self._deadlines[request_id] = now + self._within_s
        return effects, ready

    def drop_idle(self) -> list[WorkerEffect]:
        """Drop the adapters that nobody uses: their model is given up, and with it what is loaded for it."""
        idle = [digest for digest, entry in self._entries.items() if not entry.users]
        for digest in idle:
            if not self._entries.pop(digest).is_loaded:
                self._given_up[digest] += 1
        return [DropAdapter(digest=digest) for digest in idle]

    def adopt(self, other: AdapterCache) -> None:
        """Take over the adapters that another cache has loaded, and that no request uses."""
        self._entries, self._pinned = other._entries, other._pinned
        self._given_up, self.load_s = other._given_up, other.load_s

    def next_deadline(self) -> float | None:
        """The time when `overdue` names somebody."""
        return next(iter(self._deadlines.values()), None)

    def overdue(self, now: float) -> list[tuple[str, str]]:
        """Requests that waited too long, each with what for; they wait until they are dropped."""
        text = f"waited {self._within_s:g} s for its adapter to be loaded"
        return [(request_id, text) for request_id, deadline in self._deadlines.items() if deadline <= now]

    def check_invariants(self, request_ids: Iterable[str]) -> None:
        """Raise AssertionError when a request that is over has an adapter, or too many are loaded."""
        assert len(self._entries) <= self._most, "too many adapters are loaded"
        assert set(self._digests) <= set(request_ids), "a request that is over has an adapter"
        loading = [entry.users for entry in self._entries.values() if not entry.is_loaded]
        assert set(self._deadlines) == {request_id for users in loading for request_id in users}
        users = {request_id for entry in self._entries.values() for request_id in entry.users}
        assert not users & set(self._queue), "a request has a place and waits for one"
        assert users | set(self._queue) == set(self._digests), "a request has no place and does not wait"

    def _is_impatient(self, now: float) -> bool:
        """True if somebody has waited so long for a place that nobody may pass."""
        return any(now - since_s > PATIENCE_S for _, since_s in self._queue.values())

    def _use(self, request_id: str, adapter: Adapter) -> None:
        entry = self._entries[adapter.digest] = self._entries.pop(adapter.digest)
        entry.users.add(request_id)
        entry.numbers.add(adapter.number)

    def _idle(self, in_flight: Set[str]) -> str | None:
        """Return the adapter that nobody has used for the longest time; None while all are in use."""
        others = {
            one: entry for one, entry in self._entries.items() if entry.numbers.isdisjoint(self._pinned)
        }
        for digest, entry in (others or self._entries).items():
            if entry.is_loaded and not entry.users and digest not in in_flight:
                return digest
        return None
