"""How a process shares through Redis, for Prometheus; without Redis there are no samples."""

from __future__ import annotations

from typing import Final

from baton_service.exposition import Exposition, Family, Kind
from baton_service.shared_state.state import SharedState

_PROCESS: Final = ("process",)
"""`router`, or the name of a worker."""
UP: Final = Family(
    name="baton_redis_up", kind=Kind.GAUGE, text="1 while everything last tried succeeded", labels=_PROCESS
)
BEHIND: Final = Family(
    name="baton_redis_changes_behind",
    kind=Kind.GAUGE,
    text="Changes in the stream that had not been read at the last look",
    labels=_PROCESS,
)
RESYNCS: Final = Family(
    name="baton_redis_resyncs",
    kind=Kind.COUNTER,
    text="Sets of workers read anew: at a start, after a gap",
    labels=_PROCESS,
)
REPUBLISHED: Final = Family(
    name="baton_redis_republished",
    kind=Kind.COUNTER,
    text="Whole sets written: at a start, and when Redis had lost them",
    labels=_PROCESS,
)
FAMILIES: Final = (UP, BEHIND, RESYNCS, REPUBLISHED)


def tell_shared_state(page: Exposition, process: str, state: SharedState | None) -> None:
    """Add what one process has counted; None is without Redis."""
    if state is not None:
        page.add(UP, state.is_up, process)
        page.add(BEHIND, state.num_changes_behind, process)
        page.add(RESYNCS, state.num_resyncs, process)
        page.add(REPUBLISHED, state.num_republished, process)
