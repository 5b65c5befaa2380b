"""The checks of a run: how each request may end, and that nothing is left behind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from baton_core.errors import ErrorCode
from baton_core.sessions.router_messages import RequestSpec
from baton_core.sessions.worker_info import Role
from baton_router.core.admission.assignment import prompt_hashes
from baton_router.core.router_events import FinishRequest
from baton_simulator.cluster import Cluster
from baton_simulator.outcome import Outcome
from baton_simulator.scenario import Fault, FaultKind
from baton_simulator.sim_worker import SimWorker

_AFTERMATH_S: Final = 3.0
"""Time in which a fault has effects after its end: sessions end, and begin again."""
_SAMPLE_S: Final = 0.1


@dataclass(slots=True, kw_only=True)
class History:
    """The faults of a run, by true time."""

    roles: dict[str, Role]
    longest: dict[str, int]
    """Tokens of a sequence that each worker holds."""
    decode_wait_s: float
    """Longest wait of a request for another worker."""
    is_always_split: bool = False
    faults: list[Fault] = field(default_factory=list)
    cancelled: set[str] = field(default_factory=set)

    def lacks_worker(self, outcome: Outcome, at_s: float) -> bool:
        """Return True if a part of a request may have had no connected worker at its router then."""
        spec = outcome.spec
        num_tokens = len(spec.prompt_token_ids) + (spec.params.max_tokens or 1)
        here = [
            role
            for name, role in self.roles.items()
            if self.longest[name] >= num_tokens and not self._is_away(name, outcome.router, at_s)
        ]
        has_parts = any(role.can_prefill for role in here) and any(role.can_decode for role in here)
        return not has_parts or (self.is_always_split and len(here) < 2)

    def longest_lack_s(self, outcome: Outcome, end_s: float) -> float:
        longest, lack, start_s = 0.0, 0.0, outcome.submitted_s
        for step in range(int((end_s - start_s) / _SAMPLE_S) + 1):
            is_lacking = self.lacks_worker(outcome, start_s + step * _SAMPLE_S)
            lack = lack + _SAMPLE_S if is_lacking else 0.0
            longest = max(longest, lack)
        return longest

    def _is_away(self, worker: str, router: str, at_s: float) -> bool:
        return any(
            fault.at_s <= at_s <= fault.end_s + _AFTERMATH_S and _separates(fault, worker, router)
            for fault in self.faults
        )


def _separates(fault: Fault, worker: str, router: str) -> bool:
    """Return True if it may end the session of these two."""
    match fault.kind:
        case FaultKind.CRASH | FaultKind.LEAVE | FaultKind.FREEZE | FaultKind.RANK:
            return fault.nodes[0] in (worker, router)
        case FaultKind.PARTITION:
            return {*fault.nodes} == {worker, router}
        case _:
            return False


def check_outcome(outcome: Outcome, history: History) -> None:
    """A request ended once, in time, and as it may; its tokens were compared as they came.

    Raises:
        AssertionError: it did not.
    """
    name = outcome.spec.request_id
    if outcome.is_router_lost:
        return
    assert len(outcome.ends) == 1, f"{name} has {len(outcome.ends)} ends"
    (end,) = outcome.ends
    assert outcome.ended_s is not None
    frozen_s = sum(fault.duration_s for fault in history.faults if fault.kind is FaultKind.FREEZE)
    latest_s = outcome.submitted_s + 1.02 * outcome.timeout_s + frozen_s
    assert outcome.ended_s <= latest_s, f"{name} ended at {outcome.ended_s:.3f}, after its deadline"
    if isinstance(end, FinishRequest):
        return
    text = f"{name} ended as {end.code} ({end.message})"
    if end.code is ErrorCode.CANCELLED:
        assert name in history.cancelled, f"{text}, but its client had not left"
        return
    assert name != "last", f"{text}, when all was well again"
    match end.code:
        case ErrorCode.UNAVAILABLE:
            is_excused = history.lacks_worker(outcome, outcome.ended_s)
        case ErrorCode.WORKER_LOST | ErrorCode.OVERLOADED:
            lack_s = history.longest_lack_s(outcome, outcome.ended_s)
            is_excused = lack_s >= history.decode_wait_s - 2 * _SAMPLE_S
        case _:
            is_excused = False
    assert is_excused, f"{text}, although there were workers for it"


def require_clean(cluster: Cluster) -> None:
    """No request, lease, transfer or block is left behind: free and cached blocks are the whole pool.

    Raises:
        AssertionError: something is.
    """
    for router in cluster.routers.values():
        if router.is_alive:
            assert router.core.num_requests == 0, f"{router.name} still has requests"
    for worker in cluster.workers.values():
        if worker.is_alive:
            _require_idle(worker)


def _require_idle(worker: SimWorker) -> None:
    core, name = worker.core, worker.name
    assert core.num_requests == 0, f"{name} still has {core.num_requests} requests"
    num_sequences = core.scheduler.num_running + core.scheduler.num_waiting
    assert num_sequences == 0, f"{name} still schedules {num_sequences} sequences"
    assert core.leases.num_open == 0, f"{name} still holds {core.leases.num_open} offers"
    assert core.kv_pulls.num_transfers == 0, f"{name} still has {core.kv_pulls.num_transfers} transfers"
    assert core.kv_pulls.num_reserved_blocks == 0, f"{name} still has blocks reserved"
    num_lost = core.pool.num_blocks - core.pool.num_available
    assert num_lost == 0, f"{name} leaks {num_lost} of {core.pool.num_blocks} blocks"


def require_known(cluster: Cluster, specs: list[RequestSpec]) -> None:
    """Each router knows, block by block, what each worker has cached of these prompts.

    Raises:
        AssertionError: it takes a worker to hold what it does not, or the reverse.
    """
    for router in cluster.routers.values():
        fleet = router.core.fleet
        if not router.is_alive or (identity := fleet.identity) is None:
            continue
        hashes = {one: None for spec in specs for one in prompt_hashes(spec, identity)}
        for block_hash in hashes:
            for view in fleet.views(1, [block_hash]):
                worker = cluster.workers[view.worker_id]
                is_here = worker.core.pool.cache.find(block_hash) is not None
                assert bool(view.num_cached_tokens) == is_here, (
                    f"{router.name} takes {worker.name} to {'lack' if is_here else 'hold'} a block"
                )
