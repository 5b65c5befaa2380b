"""The leader's port, where ranks connect that have no socket pair with it."""

from __future__ import annotations

import errno
import logging
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from hmac import compare_digest
from importlib.metadata import version
from typing import Final

from baton_core.errors import ErrorCode, InvalidConfigError, RequestError
from baton_service.tcp import connect_to, listen_at
from baton_worker.ranks.rank_channel import HelloFrame, RankChannel, RefusedFrame, own_machine

ACCEPT_EVERY_S: Final = 0.5
HELLO_WITHIN_S: Final = 5.0
"""Time for whoever connects to introduce itself, while the others wait."""
_log = logging.getLogger(__name__)
_LOST_AFTER_S: Final = 10
"""Time that data may stay unacknowledged, and silence after which a connection is probed."""


class RankListener:
    """Accepts connections of ranks at an address.

    Args:
        token: the secret that each of them has.
        started_with: what each must have been started with.
        names: what an error calls host and port.

    Raises:
        InvalidConfigError: the address is not of this machine, or the port is in use.
    """

    def __init__(
        self,
        host: str,
        port: int,
        started_with: Mapping[str, str],
        *,
        token: str = "",
        names: tuple[str, str] = ("host", "port"),
    ) -> None:
        self._socket = _bound(host, port, names)
        self._started_with = with_version(started_with)
        self._token = token
        self.address: tuple[str, int] = self._socket.getsockname()[:2]

    def accept(
        self, ranks: set[int], timeout_s: float, check: Callable[[], object] = lambda: None
    ) -> dict[int, RankChannel]:
        """Wait until each of these ranks has connected; `check` raises where one of them never will.

        Raises:
            InvalidConfigError: one was started with something else, or runs twice.
            RequestError: UNAVAILABLE, not all came in time.
        """
        channels: dict[int, RankChannel] = {}
        try:
            self._accept_all(ranks, timeout_s, check, channels)
        except BaseException:
            for channel in channels.values():
                channel.close()
            raise
        return channels

    def close(self) -> None:
        """Accept nobody any more."""
        self._socket.close()

    def _accept_all(
        self,
        ranks: set[int],
        timeout_s: float,
        check: Callable[[], object],
        channels: dict[int, RankChannel],
    ) -> None:
        deadline_s = time.monotonic() + timeout_s
        _log.info("waiting at %s:%d for %d ranks", *self.address, len(ranks))
        while missing := sorted(ranks - _without_ended(channels).keys()):
            check()
            if time.monotonic() > deadline_s:
                text = f"ranks {', '.join(map(str, missing))} have not connected within {timeout_s:g} s"
                raise RequestError(ErrorCode.UNAVAILABLE, f"{text} to {self.address[0]}:{self.address[1]}")
            with suppress(TimeoutError):
                connection, (peer, *_) = self._socket.accept()
                self._greet(connection, peer, ranks, channels)

    def _greet(
        self, connection: socket.socket, peer: str, ranks: set[int], channels: dict[int, RankChannel]
    ) -> None:
        channel = RankChannel(tuned(connection))
        hello = channel.receive_hello(HELLO_WITHIN_S)
        if hello is None or not compare_digest(hello.token.encode(), self._token.encode()):
            _log.warning("refused a connection from %s: no rank with the leader's secret", peer)
            channel.close()
            return
        refusal = self._refusal(hello, ranks, _without_ended(channels))
        if refusal:
            with closing(channel), suppress(OSError):
                channel.send(RefusedFrame(refusal))
            raise InvalidConfigError(refusal)
        channel.machine = hello.machine
        channels[hello.rank] = channel

    def _refusal(self, hello: HelloFrame, ranks: set[int], channels: dict[int, RankChannel]) -> str:
        who = f"rank {hello.rank}"
        for name, value in self._started_with.items():
            theirs = hello.started_with.get(name, "")
            if theirs != value:
                return f"{name} is {theirs} at {who}; allowed: {value}, as at the leader"
        if hello.rank not in ranks:
            return f"{who} is the leader's own; allowed: {', '.join(map(str, sorted(ranks)))}"
        if hello.rank in channels:
            return f"{who} has connected twice; allowed: one process for each rank"
        return ""


def _without_ended(channels: dict[int, RankChannel]) -> dict[int, RankChannel]:
    """Return the channels once those whose rank has ended are closed and taken out: it may come again."""
    for rank in [rank for rank, channel in channels.items() if channel.is_closed]:
        channels.pop(rank).close()
    return channels


def connect(
    address: tuple[str, int], rank: int, started_with: Mapping[str, str], *, token: str = "", within_s: float
) -> RankChannel:
    """Connect a rank to its leader, trying until it listens.

    Until then its name may be unknown, and its machine out of reach.

    Raises:
        OSError: it does not within this time.
    """
    deadline_s = time.monotonic() + within_s
    reason = ""
    while True:
        try:
            connection = connect_to(address, HELLO_WITHIN_S)
            break
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise
            if reason != (reason := str(error)):
                _log.info("rank %d waits for its leader at %s:%d: %s", rank, *address, reason)
            time.sleep(ACCEPT_EVERY_S)
    connection.settimeout(None)
    channel = RankChannel(tuned(connection))
    given = with_version(started_with)
    channel.send(HelloFrame(rank=rank, token=token, machine=own_machine(), started_with=given))
    return channel


def with_version(started_with: Mapping[str, str]) -> dict[str, str]:
    """Return what a rank must have been started with, and the versions that it runs with."""
    return {"version of Baton": version("baton"), "version of torch": version("torch"), **started_with}


def tuned(connection: socket.socket) -> socket.socket:
    """Have a connection end when the other machine is gone."""
    for level, option, value in (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _LOST_AFTER_S),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _LOST_AFTER_S * 1000),
    ):
        connection.setsockopt(level, option, value)
    return connection


def _bound(host: str, port: int, names: tuple[str, str]) -> socket.socket:
    try:
        bound = listen_at(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InvalidConfigError(
                f"{names[1]} is {port}, which is in use at {host}; allowed: a free port"
            ) from None
        text = f"{names[0]} is {host!r} ({error}); allowed: an address of this machine"
        raise InvalidConfigError(text) from None
    bound.settimeout(ACCEPT_EVERY_S)
    return bound
