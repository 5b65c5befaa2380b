from __future__ import annotations

import os
import resource
import secrets
import socket
import time
from collections.abc import Iterator

import pytest

from baton_kv import pool_socket
from baton_kv.pool_socket import PoolListener, is_open, request_pool


@pytest.fixture
def address() -> str:
    return f"baton-kv-test-{secrets.token_hex(8)}"


@pytest.fixture
def listener(address: str) -> Iterator[PoolListener]:
    listener = PoolListener(address, os.open("/dev/zero", os.O_RDONLY))
    yield listener
    listener.close()


def test_a_puller_gets_the_file(listener: PoolListener, address: str) -> None:
    connection, file = request_pool(address, 10.0)
    assert os.read(file, 3) == bytes(3)
    assert os.get_inheritable(file) is False
    os.close(file)
    connection.close()


def test_a_connection_lasts_until_the_holder_closes(listener: PoolListener, address: str) -> None:
    connection, file = request_pool(address, 10.0)
    os.close(file)
    assert is_open(connection)
    listener.close()
    assert not is_open(connection)
    connection.close()


def test_nobody_there_is_refused_at_once(address: str) -> None:
    with pytest.raises(ConnectionRefusedError):
        request_pool(address, 10.0)


def test_a_holder_that_never_answers_costs_one_deadline(address: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(f"\0{address}")
        silent.listen()
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            request_pool(address, 0.05)
        assert 0.05 <= time.monotonic() - started < 20


def test_one_puller_too_many_is_turned_away_until_another_leaves(
    listener: PoolListener, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_socket, "MAX_PEERS", 1)
    first, file = request_pool(address, 10.0)
    os.close(file)
    with pytest.raises(ConnectionRefusedError, match="turned this process away"):
        request_pool(address, 10.0)
    first.close()
    second, file = request_pool(address, 10.0)
    os.close(file)
    second.close()


def test_another_user_is_turned_away(
    listener: PoolListener, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    with pytest.raises(PermissionError, match="another user"):
        request_pool(address, 10.0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as consumer:
        consumer.settimeout(10.0)
        consumer.connect(f"\0{address}")
        assert socket.recv_fds(consumer, 100, 1)[:2] == (b"", [])


def test_a_holder_out_of_descriptors_answers_when_it_has_one_again(
    listener: PoolListener, address: str
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as consumer:
        consumer.settimeout(10.0)
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            consumer.connect(f"\0{address}")
            time.sleep(0.02)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        _, files, _, _ = socket.recv_fds(consumer, 100, 1)
        assert os.read(files[0], 3) == bytes(3)
        os.close(files[0])


def test_the_file_is_closed_with_the_listener(address: str) -> None:
    file = os.open("/dev/zero", os.O_RDONLY)
    listener = PoolListener(address, file)
    for _ in range(2):
        listener.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)
