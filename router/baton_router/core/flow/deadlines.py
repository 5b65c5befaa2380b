"""Deadlines by name; the next one is found without a look at all of them."""

from __future__ import annotations

import heapq


class Deadlines:
    """One deadline for each name; equal ones are due in the order in which they were set."""

    def __init__(self) -> None:
        self._current: dict[str, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, str]] = []
        """Also has replaced and dropped deadlines, until they come up or are half of all entries."""
        self._num_set = 0

    def __len__(self) -> int:
        return len(self._current)

    def set(self, name: str, deadline: float) -> None:
        """Give `name` its deadline, in the place of an earlier one."""
        entry = self._current.get(name)
        if entry is not None and entry[0] == deadline:
            return
        self._num_set += 1
        self._current[name] = (deadline, self._num_set)
        heapq.heappush(self._heap, (deadline, self._num_set, name))
        if len(self._heap) > 2 * len(self._current) + 16:
            self._heap = [(when, number, key) for key, (when, number) in self._current.items()]
            heapq.heapify(self._heap)

    def drop(self, name: str) -> None:
        """Forget the deadline of `name`, if it has one."""
        self._current.pop(name, None)

    def next(self) -> float | None:
        """The earliest one; None when there is none."""
        while self._heap and not self._is_current(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[str]:
        """Names whose deadline is over, earliest first; they keep it until it is set anew or dropped."""
        names = [(when, number, name) for name, (when, number) in self._current.items() if when <= now]
        return [name for _, _, name in sorted(names)]

    def _is_current(self, entry: tuple[float, int, str]) -> bool:
        deadline, number, name = entry
        return self._current.get(name) == (deadline, number)
