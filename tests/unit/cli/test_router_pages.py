"""Commands show a router as it is, and say what to do where it refuses them."""

from __future__ import annotations

import pytest

from baton.commands.admin import table
from baton.commands.cli_arguments import parse
from baton.commands.router_pages import fetch_page
from baton_core.errors import RequestError
from baton_core.sessions.worker_info import Role, WorkerLoad
from baton_router.grpc.services import describe_worker
from tests.builders import make_worker_info
from tests.http_threads import Calls, serving_calls


@pytest.mark.parametrize(
    ("load", "state"),
    [
        (WorkerLoad(), "serving"),
        (WorkerLoad(is_draining=True), "draining"),
        (WorkerLoad(is_asleep=True, fault="block 3 has no owner"), "faulty"),
    ],
)
def test_the_table_of_workers_has_their_state(load: WorkerLoad, state: str) -> None:
    _, row = table([describe_worker(make_worker_info("w1", Role.MIXED), load)]).splitlines()
    assert row.split()[:3] == ["w1", "mixed", state]


class _Refusing(Calls):
    """Wants another key."""

    def do_GET(self) -> None:
        self.reply(401, b'{"error": {"message": "no key was given"}}')


def test_a_command_without_the_key_hears_how_to_give_one() -> None:
    said = "wants a key, by --api-key or BATON_API_KEY: no key was given"
    with serving_calls(_Refusing) as address, pytest.raises(RequestError, match=said):
        fetch_page(parse(["explain", "--address", address, "r"]), "/debug/requests/r", dict)
