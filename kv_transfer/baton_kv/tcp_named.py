"""Producers that are named, not numbered: their hosts are looked up beside the transfers of others."""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

import zmq

from baton_kv.curve import without_key
from baton_kv.tcp_connections import File, ProducerConnection
from baton_kv.tcp_messages import ToConsumer, ToProducer
from baton_kv.tcp_stream import Place

_SCHEME: Final = "tcp://"
_log = logging.getLogger(__name__)


def is_named(endpoint: str) -> bool:
    """True if the host of `tcp://host:port` has to be looked up."""
    try:
        ipaddress.ip_address(_host_of(endpoint).strip("[]"))
    except ValueError:
        return True
    return False


class Lookups:
    """Looks up the hosts of endpoints, each on a thread of its own, none on two at a time.

    `on_done` is called on those threads.
    """

    def __init__(self, on_done: Callable[[], None]) -> None:
        self._on_done = on_done
        self._running: dict[str, Future[str]] = {}

    def find(self, endpoint: str) -> Future[str]:
        """Return the endpoint with an address for its host, once it is known."""
        self._running = {name: found for name, found in self._running.items() if not found.done()}
        if endpoint not in self._running:
            found = self._running[endpoint] = Future[str]()
            arguments = endpoint, found
            threading.Thread(target=self._look_up, args=arguments, name="kv-lookup", daemon=True).start()
        return self._running[endpoint]

    def _look_up(self, endpoint: str, found: Future[str]) -> None:
        host = _host_of(endpoint)
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        try:
            address = socket.getaddrinfo(host.strip("[]"), None, family, socket.SOCK_STREAM)[0][4][0]
        except (OSError, ValueError) as error:
            found.set_exception(error)
        else:
            shown = f"[{address}]" if family == socket.AF_INET6 else str(address)
            found.set_result(_SCHEME + shown + endpoint.removeprefix(_SCHEME + host))
        self._on_done()


class NamedProducerConnection:
    """A connection that `make` begins once the endpoint is found; what is sent until then waits."""

    def __init__(self, endpoint: str, lookups: Lookups, make: Callable[[str], ProducerConnection]) -> None:
        self._name = without_key(endpoint)
        self._found = lookups.find(endpoint)
        self._make = make
        self._connection: ProducerConnection | None = None
        self._unsent: list[ToProducer] = []

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and self._connection.is_connected

    @property
    def files(self) -> Sequence[tuple[File, int]]:
        return () if self._connection is None else self._connection.files

    def send(self, message: ToProducer) -> None:
        if self._connection is None:
            self._unsent.append(message)
        else:
            self._connection.send(message)

    def receive(self, place: Place[ToConsumer]) -> ToConsumer | None:
        if self._connection is None:
            if not self._found.done():
                return None
            self._connection = self._begin()
        return self._connection.receive(place)

    def discard(self) -> None:
        if self._connection is not None:
            self._connection.discard()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _begin(self) -> ProducerConnection:
        """Connect, and send what waits.

        Raises:
            OSError: there is no such host, or that is no endpoint.
        """
        try:
            connection = self._make(self._found.result())
        except (zmq.ZMQError, OSError, ValueError) as error:
            _log.warning("no way to the KV blocks at %.200r: %s", self._name, error)
            raise ConnectionError(str(error)) from error
        for message in self._unsent:
            connection.send(message)
        self._unsent.clear()
        return connection


def _host_of(endpoint: str) -> str:
    return endpoint.removeprefix(_SCHEME).partition("#")[0].rpartition(":")[0]
