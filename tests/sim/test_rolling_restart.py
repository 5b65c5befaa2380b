"""Every worker is told to end and started again, one after the other, under load: no request is lost."""

from __future__ import annotations

import pytest

from baton_core.sessions.worker_info import Role
from baton_core.worker.worker_events import Leave
from baton_simulator.cluster import Cluster
from baton_simulator.members import Shape, start_worker
from tests.sim.test_roles import check_nothing_lost, make_cluster, submit

ROLES = {"p": Role.PREFILL, "m": Role.MIXED, "d": Role.DECODE}
WITHIN_S = 0.4
"""Time limit of a graceful shutdown, shorter than some requests."""
STARTED_AFTER_S = 0.5
"""From the end of a worker to its successor."""


def restart(cluster: Cluster, seed: int, names: list[str], epoch: int) -> None:
    """Have the first of these workers leave, and the next one once its successor is there."""
    if not names:
        return
    leaving = cluster.workers[names[0]]
    leaving.handle(Leave(within_s=WITHIN_S))

    def look() -> None:
        if not leaving.core.shutdown.is_over(leaving.now, leaving.core.open_work):
            cluster.clock.after(0.01, look)
            return
        cluster.clock.after(0.1, lambda: cluster.crash(names[0]))  # what it said last is on its way
        cluster.clock.after(STARTED_AFTER_S, succeed)

    def succeed() -> None:
        shape = Shape(num_blocks=60, has_checksums=bool(seed % 2))
        start_worker(cluster, names[0], ROLES[names[0]], shape, epoch=epoch)
        cluster.clock.after(0.3, lambda: restart(cluster, seed, names[1:], epoch))

    look()


@pytest.mark.parametrize("seed", range(4))
def test_no_request_is_lost_while_every_worker_is_restarted(seed: int) -> None:
    cluster = make_cluster(seed, ROLES, balance=None)
    submit(cluster, seed, num_requests=16, within_s=4.0, max_tokens=80, longest=60)
    before = dict(cluster.workers)
    cluster.clock.after(0.5, lambda: restart(cluster, seed, list(ROLES), epoch=2))
    cluster.clock.run(30.0)
    check_nothing_lost(cluster)
    assert all(cluster.workers[name] is not worker for name, worker in before.items())
    for worker in before.values():
        assert worker.core.num_requests == 0
        is_late = bool(worker.core.open_work)  # a consumer's release was lost, and the time over
        assert is_late or worker.core.pool.num_available == worker.core.pool.num_blocks
    records = cluster.router.core.log.recent()
    assert any(len(record.decisions) > 1 for record in records), "nothing was given back"
