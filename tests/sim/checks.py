"""What must hold of a simulated cluster and its outcomes when the requests are over."""

from __future__ import annotations

from collections.abc import Sequence

from baton_core.router_events import FinishRequest
from tests.sim.cluster import Cluster, Outcome


def check_clean(cluster: Cluster) -> None:
    """No request, lease, transfer or block is left behind: free and cached blocks are the whole pool."""
    assert cluster.router.core.num_requests == 0
    for worker in cluster.workers.values():
        if worker.is_alive:
            assert worker.core.num_requests == 0
            assert worker.core.scheduler.num_running == worker.core.scheduler.num_waiting == 0
            assert worker.core.leases.num_open == 0
            assert worker.core.imports.num_transfers == 0
            assert worker.core.imports.num_reserved_blocks == 0
            assert worker.core.pool.num_available == worker.core.pool.num_blocks


def check_finished(outcome: Outcome, expected: Sequence[list[int]]) -> FinishRequest:
    """The request finished once, with these tokens in its sequences; returns its end."""
    (end,) = outcome.ends
    assert isinstance(end, FinishRequest), end
    assert outcome.tokens == dict(enumerate(expected)), outcome.spec.request_id
    assert end.num_output_tokens == sum(map(len, expected))
    return end
