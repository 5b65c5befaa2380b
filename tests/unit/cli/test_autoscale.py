"""`baton autoscale` and `baton drain`: what they print, and what they say where nobody answers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from baton.cli import main
from baton.executors.router_client import CONNECT_WITHIN_S
from tests.http_threads import Calls, serving_calls

pytestmark = pytest.mark.slow

ROLES = [
    {"role": "prefill", "num_workers": 1, "num_needed": 1.44, "num_desired": 2, "reason": "1.0 are busy"},
    {"role": "decode", "num_workers": 2, "num_needed": 0.2, "num_desired": 1, "reason": "0.1 are full"},
]


BUSY = b"the service's loop did not answer within 2 s\n"


@contextmanager
def answering(method: str, path: str, *bodies: bytes, status: int = 200) -> Iterator[str]:
    """Answer calls of one path with these bodies in turn, the last one again and again; gives the address.

    The worker's own words for a busy loop come with 503.
    """
    left = list(bodies)

    class Answers(Calls):
        def answer(self) -> None:
            body = (left.pop(0) if len(left) > 1 else left[0]) if self.path == path else b"?"
            of_path = 503 if body == BUSY else status
            self.reply(of_path if self.path == path else 404, body)

    setattr(Answers, f"do_{method}", Answers.answer)
    with serving_calls(Answers) as address:
        yield address


def test_each_role_has_a_line_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    with answering("GET", "/debug/cluster", json.dumps({"scaling": ROLES, "more": 1}).encode()) as address:
        assert main(["autoscale", "--address", address]) == 0
        assert capsys.readouterr().out == (
            "prefill: 1 -> 2 (needs 1.4): 1.0 are busy\ndecode: 2 -> 1 (needs 0.2): 0.1 are full\n"
        )
        assert main(["autoscale", "--address", address, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == ROLES


def test_an_answer_of_another_version_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with answering("GET", "/debug/cluster", b"{}") as address:
        assert main(["autoscale", "--address", address]) == 1
        assert "answers otherwise than a router of this version" in capsys.readouterr().err


def work(num_requests: int) -> bytes:
    return json.dumps({"num_requests": num_requests, "num_offers": 0, "num_transfers": 0}).encode()


def test_a_drain_waits_until_nothing_is_open(capsys: pytest.CaptureFixture[str]) -> None:
    with answering("POST", "/drain", work(2), work(1), work(0)) as address:
        assert main(["drain", "--address", address, "--wait", "30"]) == 0
        assert capsys.readouterr().out == "the worker is drained\n"


def test_a_drain_waits_for_a_worker_that_is_busy(capsys: pytest.CaptureFixture[str]) -> None:
    with answering("POST", "/drain", work(2), BUSY, BUSY, work(0)) as address:
        assert main(["drain", "--address", address, "--wait", "30"]) == 0
    with answering("POST", "/drain", BUSY) as address:
        assert main(["drain", "--address", address, "--wait", "0.3"]) == 1
        assert "does not drain: 503 the service's loop did not answer" in capsys.readouterr().err
    with answering("POST", "/drain", b"still starting\n", status=503) as address:
        began_s = time.monotonic()
        assert main(["drain", "--address", address, "--wait", "30"]) == 1
        assert time.monotonic() - began_s < 15


def test_a_drain_that_takes_too_long_fails_and_says_what_is_open(capsys: pytest.CaptureFixture[str]) -> None:
    with answering("POST", "/drain", work(2)) as address:
        assert main(["drain", "--address", address]) == 0
        assert capsys.readouterr().out.startswith("the worker drains: 2 requests")
        assert main(["drain", "--address", address, "--wait", "0.3"]) == 1
        assert "has still open after 0.3 s: 2 requests, 0 leases and 0 transfers" in capsys.readouterr().err


def test_a_worker_that_refuses_or_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with answering("POST", "/drain", b"allowed: a key\n", status=401) as address:
        assert main(["drain", "--address", address]) == 1
        assert f"worker at {address} wants a key, by --api-key or BATON_API_KEY" in capsys.readouterr().err
    with answering("POST", "/elsewhere", b"{}") as address:
        assert main(["drain", "--address", address]) == 1
        assert "where no worker answers; allowed: the --metrics-port of a worker" in capsys.readouterr().err
    assert main(["drain", "--address", address]) == 1
    assert "where no worker answers over HTTP" in capsys.readouterr().err


def test_the_http_port_tells_a_command_that_needs_the_grpc_port(capsys: pytest.CaptureFixture[str]) -> None:
    began_s = time.monotonic()
    with answering("GET", "/live", b"") as address:
        assert main(["complete", "hello", "--address", address]) == 1
    assert "which speaks HTTP; this command needs the gRPC port (--grpc-port" in capsys.readouterr().err
    assert time.monotonic() - began_s < 0.8 * CONNECT_WITHIN_S
