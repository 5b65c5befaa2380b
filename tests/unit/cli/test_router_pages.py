"""Commands show a router as it is, and say what to do where it refuses them."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from baton.commands.admin import table
from baton.commands.cli_arguments import parse
from baton.commands.router_pages import fetch_page
from baton_core.errors import RequestError
from baton_core.sessions.worker_info import Role, WorkerLoad
from baton_router.grpc.inference_service import describe_worker
from tests.builders import make_worker_info


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


class _Refusing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"error": {"message": "no key was given"}}'
        self.send_response(401)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        return


@pytest.fixture
def address() -> Iterator[str]:
    """A server that wants another key."""
    with HTTPServer(("127.0.0.1", 0), _Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_command_without_the_key_hears_how_to_give_one(address: str) -> None:
    args = parse(["explain", "--address", address, "r"])
    with pytest.raises(RequestError, match="wants a key, by --api-key or BATON_API_KEY: no key was given"):
        fetch_page(args, "/debug/requests/r")
