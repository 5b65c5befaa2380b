from __future__ import annotations

import pytest

from baton_core.sessions.worker_info import Role, WorkerLoad
from baton_router.core.fleet.readiness import why_not_ready
from tests.builders import make_worker_info

READY = WorkerLoad()
DRAINS = WorkerLoad(is_draining=True)
FAULTY = WorkerLoad(fault="a block is free twice")


@pytest.mark.parametrize(
    ("loads", "text"),
    [
        ({}, "no worker prefills: none is registered"),
        ({"p": READY}, "no worker decodes: none is registered"),
        ({"p": READY, "d": READY}, ""),
        ({"p": DRAINS, "d": READY}, "no worker prefills: p drains"),
        ({"p": READY, "d": FAULTY}, "no worker decodes: d is faulty (a block is free twice)"),
        (
            {"p": READY, "d": FAULTY, "d2": WorkerLoad(is_asleep=True)},
            "no worker decodes: d is faulty (a block is free twice), d2 sleeps",
        ),
        ({"p": READY, "d": FAULTY, "d2": READY}, ""),
        ({"p": WorkerLoad(role=Role.MIXED), "d": FAULTY}, ""),
    ],
)
def test_a_router_says_which_half_nobody_does_and_why(loads: dict[str, WorkerLoad], text: str) -> None:
    roles = {"p": Role.PREFILL, "d": Role.DECODE}
    workers = [(make_worker_info(name, role=roles[name[0]]), load) for name, load in loads.items()]
    assert why_not_ready(workers) == text
