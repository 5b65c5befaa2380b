"""What must hold of a simulated cluster when its requests are over."""

from __future__ import annotations

from tests.sim.cluster import Cluster


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
