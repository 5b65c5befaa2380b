from __future__ import annotations

import pytest

from baton_core.worker.worker_events import RouterJoined
from tests.builders import make_worker_config
from tests.unit.core.workers import ROUTER, Worker


@pytest.fixture
def worker() -> Worker:
    """A worker that a router has joined."""
    worker = Worker(make_worker_config())
    worker.feed(RouterJoined(router_id=ROUTER))
    return worker
