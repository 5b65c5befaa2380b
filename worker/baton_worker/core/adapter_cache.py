"""The LoRA adapters of one worker: which are loaded, who uses them, who waits for them.

At most so many are loaded at a time. One that nobody uses gives way to another, the least recently used
first; while all are in use, requests for others wait in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from baton_core.requests.adapter import Adapter
from baton_core.worker.worker_events import AdapterLoaded, DropAdapter, LoadAdapter, WorkerEffect


@dataclass(slots=True, kw_only=True)
class _Entry:
    adapter: Adapter
    is_loaded: bool = False
    users: set[str] = field(default_factory=set)
    """Open requests with it."""


class AdapterCache:
    """Requests come by `begin` and go by `drop`; between them their adapter stays loaded."""

    def __init__(self, most: int, within_s: float) -> None:
        self._most, self._within_s = most, within_s
        self._entries: dict[str, _Entry] = {}
        """Adapters that are loaded or being loaded, by digest, the least recently used first."""
        self._queue: dict[str, Adapter] = {}
        """Requests that wait for a place, in order."""
        self._deadlines: dict[str, float] = {}
        """Requests that wait, in the order of their deadlines."""
        self._digests: dict[str, str] = {}
        """The adapter of each open request that has one."""

    def __contains__(self, request_id: str) -> bool:
        """Say whether a request waits for its adapter."""
        return request_id in self._deadlines

    @property
    def loaded(self) -> tuple[str, ...]:
        """Digests of the adapters that are loaded."""
        return tuple(digest for digest, entry in self._entries.items() if entry.is_loaded)

    @property
    def names(self) -> dict[str, str]:
        """Names of the adapters that are loaded or being loaded, by digest."""
        return {digest: entry.adapter.name for digest, entry in self._entries.items()}

    def begin(self, now: float, request_id: str, adapter: Adapter) -> None:
        """Take a request, which waits unless its adapter is loaded."""
        self._digests[request_id] = adapter.digest
        entry = self._entries.get(adapter.digest)
        if entry is not None and entry.is_loaded:
            self._use(request_id, adapter.digest)
            return
        self._deadlines[request_id] = now + self._within_s
        self._queue[request_id] = adapter

    def end(self, loaded: AdapterLoaded) -> tuple[str, ...]:
        """Take an answer; returns the requests that waited for it, which need not wait any longer."""
        entry = self._entries.get(loaded.digest)
        if entry is None or entry.is_loaded:
            return ()
        entry.is_loaded = True
        waiting = tuple(request_id for request_id in entry.users if request_id in self._deadlines)
        for request_id in waiting:
            del self._deadlines[request_id]
        if loaded.error:
            del self._entries[loaded.digest]
        return tuple(sorted(waiting))

    def drop(self, request_id: str) -> None:
        """Forget a request that is over."""
        digest = self._digests.pop(request_id, None)
        if digest is None:
            return
        self._deadlines.pop(request_id, None)
        self._queue.pop(request_id, None)
        if (entry := self._entries.get(digest)) is not None:
            entry.users.discard(request_id)

    def advance(self, in_flight: Set[str]) -> list[WorkerEffect]:
        """Give places to those that queue, as far as there are any; steps in flight use some adapters."""
        effects: list[WorkerEffect] = []
        for request_id, adapter in list(self._queue.items()):
            if adapter.digest not in self._entries:
                if len(self._entries) >= self._most:
                    if (idle := self._idle(in_flight)) is None:
                        continue
                    del self._entries[idle]
                    effects.append(DropAdapter(digest=idle))
                self._entries[adapter.digest] = _Entry(adapter=adapter)
                effects.append(LoadAdapter(adapter=adapter))
            del self._queue[request_id]
            self._use(request_id, adapter.digest)
        return effects

    def next_deadline(self) -> float | None:
        return next(iter(self._deadlines.values()), None)

    def overdue(self, now: float) -> list[tuple[str, str]]:
        """Requests that waited too long, each with what for; they wait until they are dropped."""
        text = f"waited {self._within_s:g} s for its adapter to be loaded"
        return [(request_id, text) for request_id, deadline in self._deadlines.items() if deadline <= now]

    def check_invariants(self, request_ids: Iterable[str]) -> None:
        """Raise AssertionError when a request that is over has an adapter, or too many are loaded."""
        assert len(self._entries) <= self._most, "too many adapters are loaded"
        assert set(self._digests) <= set(request_ids), "a request that is over has an adapter"
        assert set(self._deadlines) <= set(self._digests), "somebody waits for no adapter"
        assert set(self._queue) <= set(self._deadlines), "somebody queues who does not wait"
        users = {request_id for entry in self._entries.values() for request_id in entry.users}
        assert users | set(self._queue) == set(self._digests), "a request has no place and does not queue"

    def _use(self, request_id: str, digest: str) -> None:
        self._entries[digest] = self._entries.pop(digest)
        self._entries[digest].users.add(request_id)

    def _idle(self, in_flight: Set[str]) -> str | None:
        """Return the adapter that nobody has used for the longest time; None while all are in use."""
        for digest, entry in self._entries.items():
            if entry.is_loaded and not entry.users and digest not in in_flight:
                return digest
        return None
