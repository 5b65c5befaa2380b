from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from baton_core.errors import InvalidConfigError
from baton_router.http.connections.server import listen
from tests.ipv6 import needs_ipv6


def reaches(host: str, port: int) -> bool:
    with socket.create_connection((host, port), timeout=5.0):
        return True


def test_all_addresses_of_a_host_share_one_port() -> None:
    with ExitStack() as stack:
        listeners = [stack.enter_context(each) for each in listen("localhost", 0)]
        ports = {each.getsockname()[1] for each in listeners}
        assert len(ports) == 1
        assert reaches("localhost", ports.pop())


@needs_ipv6
@pytest.mark.parametrize(("host", "callers"), [("::1", ["::1"]), ("::", ["::1", "127.0.0.1"])])
def test_an_ipv6_host_is_heard(host: str, callers: list[str]) -> None:
    (listener,) = listen(host, 0)
    with listener:
        assert all(reaches(caller, listener.getsockname()[1]) for caller in callers)


def test_a_port_in_use_is_refused_with_its_flags() -> None:
    (taken,) = listen("127.0.0.1", 0)
    with taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidConfigError, match=f"--host and --port is '127.0.0.1:{port}'.*; allowed: "):
            listen("127.0.0.1", port)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1", "a" * 300, "é" * 100, "a\0b"])
def test_a_host_of_others_is_refused(host: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"cannot be bound \(.+\); allowed: "):
        listen(host, 0)


def test_a_port_out_of_range_is_refused() -> None:
    with pytest.raises(
        InvalidConfigError, match=r":65536', which cannot be bound \(a port is from 0 to 65535\)"
    ):
        listen("127.0.0.1", 65536)
