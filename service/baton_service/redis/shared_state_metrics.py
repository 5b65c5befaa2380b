"""Prometheus metrics of the sharing through Redis; without Redis there are no samples.

`process` is `router`, or the name of a worker.
"""

from __future__ import annotations

from typing import Final

from baton_service.exposition import Exposition, counter, gauge
from baton_service.redis.shared_state import SharedState

UP: Final = gauge("baton_redis_up", "1 while Redis answered all that was last tried", "process")
BEHIND: Final = gauge(
    "baton_redis_changes_behind", "Changes in the stream that had not been read at the last look", "process"
)
RESYNCS: Final = counter(
    "baton_redis_resyncs", "Sets of workers read anew: at a start, after a gap", "process"
)
REPUBLISHED: Final = counter(
    "baton_redis_republished", "Whole sets written: at a start, and when Redis had lost them", "process"
)
FAMILIES: Final = (UP, BEHIND, RESYNCS, REPUBLISHED)


def report_shared_state(page: Exposition, process: str, state: SharedState | None) -> None:
    """Add the counts of one process; None is a process without Redis."""
    if state is not None:
        page.add(UP, state.is_up, process)
        page.add(BEHIND, state.num_changes_behind, process)
        page.add(RESYNCS, state.num_resyncs, process)
        page.add(REPUBLISHED, state.num_republished, process)
