"""The sequences that may run with their adapters: those of a step have at most `max_loras` different ones."""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as Values

from baton_core.worker.sequence import Sequence, order_of
from baton_worker.core.adapter_cache import PATIENCE_S


class AdapterSeats:
    """Judges waiting sequences while a step is planned.

    One whose adapter has no place is passed by others, but not by less important ones with adapters, and by
    none with an adapter once it has waited for `PATIENCE_S`: those that run end, and its adapter has a place.

    Args:
        now: the time, in seconds, on the clock of `Sequence.arrival_s`.
        waiting: the waiting sequences, in order.
        running: the running sequences; the list may change until the step is planned.
        max_loras: most adapters of one step.
    """

    def __init__(
        self, now: float, waiting: Iterable[Sequence], running: Values[Sequence], max_loras: int
    ) -> None:
        self._running, self._max_loras = running, max_loras
        digests = self._digests
        is_full = len(digests) >= max_loras
        passed = [seq for seq in waiting if is_full and seq.adapter and seq.adapter_digest not in digests]
        late = [seq for seq in passed if now - seq.arrival_s > PATIENCE_S]
        self._lowest = passed[0].priority if passed else math.inf
        self._last = order_of(late[0]) if late else None

    def take(self, seq: Sequence) -> bool:
        """Return whether a waiting sequence may join those that run."""
        if not seq.adapter:
            return True
        is_held_back = seq.priority > self._lowest or (self._last is not None and order_of(seq) > self._last)
        if is_held_back:
            return False
        digests = self._digests
        return seq.adapter_digest in digests or len(digests) < self._max_loras

    @property
    def _digests(self) -> set[str]:
        """The adapters of those that run."""
        return {one.adapter_digest for one in self._running if one.adapter}
