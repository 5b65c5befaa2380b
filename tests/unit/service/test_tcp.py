"""Sockets that listen: every address that cannot be bound is refused with a reason for people."""

from __future__ import annotations

import errno
import re
import socket

import pytest

from baton_core.errors import InvalidConfigError
from baton_service.tcp import connect_to, listen_at
from baton_worker.metrics_server import MetricsServer
from tests.builders import open_probes
from tests.ipv6 import needs_ipv6

NOT_BOUND = [
    ("no.such.host.invalid", 0, ""),
    ("é" * 100, 0, "that is not a host name"),
    ("a\0b", 0, "that is not a host name"),
    ("192.0.2.1", 0, "Cannot assign requested address"),
    ("127.0.0.1", 65536, "a port is from 0 to 65535"),
    ("127.0.0.1", -1, "a port is from 0 to 65535"),
]
"""Hosts and ports, and the reason; that for a name depends on how names are looked up."""


@pytest.mark.parametrize(("host", "port", "reason"), NOT_BOUND)
def test_an_address_that_cannot_be_bound_is_refused_with_its_reason(
    host: str, port: int, reason: str
) -> None:
    with pytest.raises(OSError, match=reason or None) as refused:
        listen_at(host, port)
    assert refused.value.strerror


@pytest.mark.parametrize(("host", "port", "reason"), NOT_BOUND)
async def test_the_metrics_port_names_it(host: str, port: int, reason: str) -> None:
    said = re.escape(f"--metrics-port is {port}, which cannot be taken on {host} ({reason}")
    with pytest.raises(InvalidConfigError, match=said) as refused:
        MetricsServer(host, port, open_probes())
    assert "Unknown error" not in str(refused.value)


def test_a_machine_without_ipv6_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = socket.socket

    def ipv4_only(family: int = -1, *args: int, **kwargs: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return whole(family, *args, **kwargs)

    monkeypatch.setattr(socket, "socket", ipv4_only)
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with pytest.raises(OSError, match="Address family not supported"):
        listen_at("::", 0)


@pytest.mark.parametrize(
    ("host", "callers"),
    [
        ("127.0.0.1", ["127.0.0.1"]),
        pytest.param("::1", ["::1"], marks=needs_ipv6),
        pytest.param("::", ["::1", "127.0.0.1"], marks=needs_ipv6),
    ],
)
def test_an_address_is_heard(host: str, callers: list[str]) -> None:
    with listen_at(host, 0) as listener:
        for caller in callers:
            connect_to((caller, listener.getsockname()[1]), 5.0).close()
