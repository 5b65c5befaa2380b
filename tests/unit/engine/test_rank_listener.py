"""The port at which ranks connect to their leader: who is let in, and what the others are told."""

from __future__ import annotations

import errno
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from baton_core.errors import InvalidConfigError, RequestError
from baton_service.tcp import connect_to
from baton_worker.ranks import rank_listener
from baton_worker.ranks.rank_channel import MAX_HELLO_BYTES, AliveFrame, RankChannel, RefusedFrame, StopFrame
from baton_worker.ranks.rank_listener import RankListener, connect

pytestmark = pytest.mark.slow

GIVEN = {"nnodes": "2"}


@pytest.fixture
def listener() -> Iterator[RankListener]:
    with closing(RankListener("127.0.0.1", 0, GIVEN, token="secret")) as listener:
        yield listener


class Connecting(threading.Thread):
    """A rank that connects on a thread."""

    def __init__(self, listener: RankListener, rank: int, **changes: Any) -> None:
        super().__init__()
        self._options = {"started_with": GIVEN, "token": "secret", "within_s": 5.0, **changes}
        self._address, self._rank = listener.address, rank
        self.start()

    def run(self) -> None:
        self.channel = connect(self._address, self._rank, **self._options)

    def joined(self) -> RankChannel:
        self.join()
        return self.channel


class Accepting(threading.Thread):
    """A leader that waits on a thread."""

    def __init__(self, listener: RankListener, ranks: set[int]) -> None:
        super().__init__()
        self._listener, self._ranks = listener, ranks
        self.start()

    def run(self) -> None:
        self._channels = self._listener.accept(self._ranks, 10.0)

    def joined(self) -> dict[int, RankChannel]:
        self.join()
        return self._channels


def test_ranks_are_let_in_beside_strangers(listener: RankListener) -> None:
    stranger = socket.create_connection(listener.address)
    stranger.sendall(b"GET / HTTP/1.1\r\nHost: leader\r\n\r\n" * 2)
    stranger.close()
    early = socket.create_connection(listener.address)
    RankChannel(early).send(AliveFrame())
    ranks = [Connecting(listener, rank) for rank in (2, 0)]
    imposter = Connecting(listener, 0, token="guessed")
    channels = listener.accept({0, 2}, 10.0)
    assert sorted(channels) == [0, 2]
    for one in ranks:
        own = one.joined()
        own.send(AliveFrame())
        own.close()
    for channel in channels.values():
        assert isinstance(channel.receive_at_leader(), AliveFrame)
        assert channel.receive_at_leader() is None
        assert channel.has_ended.is_set()
        channel.close()
    imposter.joined().close()
    early.close()


class Dripping(threading.Thread):
    """A stranger that sends a byte every 20 ms until it is cut off."""

    def __init__(self, listener: RankListener, header: bytes) -> None:
        super().__init__()
        self._connection = socket.create_connection(listener.address)
        self._connection.sendall(header)
        self.start()

    def run(self) -> None:
        with closing(self._connection), suppress(ConnectionError):
            while True:
                self._connection.sendall(b"x")
                time.sleep(0.02)


@pytest.mark.parametrize(("num_bytes", "within_s"), [(1000, 0.3), (MAX_HELLO_BYTES + 1, 30.0)])
def test_a_stranger_holds_ranks_up_for_one_hello_at_most(
    num_bytes: int, within_s: float, listener: RankListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_listener, "HELLO_WITHIN_S", within_s)
    dripping = Dripping(listener, struct.pack("<I", num_bytes))
    with pytest.raises(RequestError, match="ranks 1 have not connected"):
        listener.accept({1}, 0.1)
    dripping.join(5.0)
    assert not dripping.is_alive()


def test_a_rank_that_has_ended_may_come_again(listener: RankListener) -> None:
    first = Connecting(listener, 1)
    waiting = Accepting(listener, {1, 2})
    first.joined().close()
    again, other = Connecting(listener, 1), Connecting(listener, 2)
    channels = waiting.joined()
    again.joined().send(AliveFrame())
    assert isinstance(channels[1].receive_at_leader(), AliveFrame)
    for channel in (*channels.values(), again.channel, other.joined()):
        channel.close()


def test_a_rank_that_comes_twice_is_refused(listener: RankListener) -> None:
    ranks = [Connecting(listener, 1) for _ in range(2)]
    with pytest.raises(InvalidConfigError, match="rank 1 has connected twice; allowed: one process for each"):
        listener.accept({1, 2}, 10.0)
    for one in ranks:
        one.joined().close()


@pytest.mark.parametrize(
    ("rank", "given", "said"),
    [
        (1, {"nnodes": "3"}, "nnodes is 3 at rank 1; allowed: 2, as at the leader"),
        (1, {**GIVEN, "version of Baton": "0.0.9"}, "version of Baton is 0.0.9 at rank 1; allowed: "),
        (0, GIVEN, "rank 0 is the leader's own; allowed: 1"),
    ],
)
def test_a_rank_that_was_started_otherwise_is_told_so(
    rank: int, given: dict[str, str], said: str, listener: RankListener
) -> None:
    connecting = Connecting(listener, rank, started_with=given)
    with pytest.raises(InvalidConfigError) as raised:
        listener.accept({1}, 10.0)
    assert str(raised.value).startswith(said)
    channel = connecting.joined()
    assert channel.receive_at_rank() == RefusedFrame(str(raised.value))
    channel.close()


def test_every_wait_has_an_end(listener: RankListener) -> None:
    host, port = listener.address
    began_s = time.monotonic()
    with pytest.raises(RequestError, match=f"ranks 1, 3 have not connected within 0.1 s to {host}:{port}"):
        listener.accept({1, 3}, 0.1)
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        connect((host, port), 1, GIVEN, within_s=0.0)
    assert time.monotonic() - began_s < 5.0


def test_a_rank_waits_until_its_leader_has_a_name_and_a_way_to_it(
    listener: RankListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [
        socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
        socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
        OSError(errno.EHOSTUNREACH, "No route to host"),
    ]

    def connect_late(address: tuple[str, int], timeout_s: float) -> socket.socket:
        if failures:
            raise failures.pop(0)
        return connect_to(address, timeout_s)

    monkeypatch.setattr(rank_listener, "connect_to", connect_late)
    monkeypatch.setattr(rank_listener, "ACCEPT_EVERY_S", 0.01)
    connecting = Connecting(listener, 1)
    channels = listener.accept({1}, 10.0)
    assert not failures
    for channel in (*channels.values(), connecting.joined()):
        channel.close()


def test_an_address_that_cannot_be_taken_is_named(listener: RankListener) -> None:
    host, port = listener.address
    names = ("master_addr", "master_port")
    with pytest.raises(
        InvalidConfigError, match=f"master_port is {port}, which is in use at {host}; allowed: a free"
    ):
        RankListener(host, port, GIVEN, names=names)
    with pytest.raises(
        InvalidConfigError, match=r"master_addr is '192.0.2.1' .*; allowed: an address of this"
    ):
        RankListener("192.0.2.1", port, GIVEN, names=names)


def test_a_shut_down_channel_ends_at_both_ends() -> None:
    ours, theirs = map(RankChannel, socket.socketpair())
    theirs.send(StopFrame())
    theirs.shut_down()
    assert isinstance(ours.receive_at_rank(), StopFrame)
    assert ours.receive_at_rank() is None
    assert theirs.receive_at_leader() is None
    for one in (ours, theirs):
        one.close()
