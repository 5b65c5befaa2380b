from __future__ import annotations

import socket
from typing import Any

import pytest

from baton_core.errors import InvalidConfigError
from baton_service import reachability
from baton_service.reachability import bound_host, reachable_host, with_host
from tests.ipv6 import needs_ipv6


@pytest.mark.parametrize("router", ["a..b:80", f"{'x' * 70}:80"])
def test_a_router_whose_name_is_none_leads_nowhere(router: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"no interface leads to '{router}' .not a host name"):
        reachable_host("tcp://0.0.0.0:7000", "", router)


@pytest.mark.parametrize(
    ("name", "reason"), [("a..b", "not a host name"), ("x" * 70, "not a host name"), ("1::2::3", "")]
)
def test_an_advertised_host_that_does_not_resolve_is_refused(name: str, reason: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"--advertise-host is '{name}', which does not .*{reason}"):
        reachable_host("tcp://0.0.0.0:7000", name, "127.0.0.1:80")


@pytest.mark.parametrize(
    ("advertised", "host"),
    [
        ("localhost", "127.0.0.1"),
        ("10.0.0.9", "10.0.0.9"),
        ("fd00::9", "[fd00::9]"),
        ("[fd00::9]", "[fd00::9]"),
    ],
)
def test_the_advertised_host_becomes_an_address_once(advertised: str, host: str) -> None:
    assert reachable_host("tcp://0.0.0.0:7000", advertised, "127.0.0.1:80") == host


def test_a_bound_name_becomes_an_address_too() -> None:
    assert reachable_host("tcp://localhost:7000", "", "") == "127.0.0.1"


@pytest.mark.parametrize("code", [socket.EAI_AGAIN, socket.EAI_NONAME])
def test_while_a_goal_has_no_address_the_way_to_the_world_counts(
    code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    resolve = socket.getaddrinfo

    def without_redis(host: str, *rest: Any, **named: Any) -> Any:
        if host == "redis":
            raise socket.gaierror(code, "not known")
        return resolve(host, *rest, **named)

    monkeypatch.setattr(socket, "getaddrinfo", without_redis)
    monkeypatch.setattr(reachability, "FAR_AWAY", "127.0.0.1:9")
    assert reachable_host("tcp://0.0.0.0:7000", "", "redis:6379") == "127.0.0.1"
    assert "redis:6379 does not resolve yet; other processes" in caplog.text


@needs_ipv6
def test_a_worker_that_listens_to_ipv4_alone_advertises_no_ipv6_address() -> None:
    assert reachable_host("tcp://[::]:7000", "", "[::1]:80") == "[::1]"
    assert reachable_host("tcp://[::]:7000", "", "127.0.0.1:80") == "127.0.0.1"
    with pytest.raises(InvalidConfigError, match=r"no interface leads to '\[::1\]:80'"):
        reachable_host("tcp://0.0.0.0:7000", "", "[::1]:80")


def test_the_advertised_host_comes_first_then_the_bound_one_then_that_of_the_interface() -> None:
    assert reachable_host("tcp://10.0.0.5:7000", "10.0.0.9", "127.0.0.1:80") == "10.0.0.9"
    assert reachable_host("tcp://10.0.0.5:7000", "", "127.0.0.1:80") == "10.0.0.5"
    assert reachable_host("tcp://0.0.0.0:7000", "", "127.0.0.1:80") == "127.0.0.1"


def test_a_host_is_read_from_and_put_into_tcp_addresses_alone() -> None:
    assert bound_host("tcp://10.0.0.5:7000") == "10.0.0.5"
    assert bound_host("tcp://[::1]:7000") == "[::1]"
    assert bound_host("ipc:///run/peer") == "127.0.0.1"
    assert with_host("tcp://0.0.0.0:7000", "worker-1") == "tcp://worker-1:7000"
    assert with_host("ipc:///run/peer", "worker-1") == "ipc:///run/peer"
