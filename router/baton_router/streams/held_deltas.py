"""Tokens of a stream that wait for those after them, so that several are written at once."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton_router.requests.generation import Delta, join


@dataclass(slots=True)
class _Held:
    """The tokens of a sequence that has begun."""

    deltas: list[Delta] = field(default_factory=list)
    num_tokens: int = 0


class HeldDeltas:
    """The newest tokens of each sequence of a request, until there are `interval` of them.

    Neither the first tokens of a sequence are held nor the last.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._held: dict[int, _Held] = {}

    def add(self, delta: Delta) -> Delta | None:
        """Take new tokens; return those that are due, or None."""
        if self._interval == 1:
            return delta
        held = self._held.get(delta.index)
        if held is None or delta.is_received:
            self._held[delta.index] = _Held()
            return delta
        held.deltas.append(delta)
        held.num_tokens += len(delta.token_ids)
        if held.num_tokens < self._interval and delta.finish_reason is None:
            return None
        self._held[delta.index] = _Held()
        return join(held.deltas)

    def release(self) -> list[Delta]:
        """Return all that is held, now that nothing follows it."""
        deltas = [join(held.deltas) for held in self._held.values() if held.deltas]
        self._held.clear()
        return deltas
