"""Finds out what a port speaks, for clients that got no answer that they understand."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from baton_service.tcp import connect_to

_TIMEOUT_S: Final = 2.0
_REQUEST: Final = b"GET /live HTTP/1.1\r\nHost: baton\r\nConnection: close\r\n\r\n"
_SETTINGS: Final = 4
"""The type of HTTP/2's first frame. Source: RFC 9113, section 6.5."""


class Protocol(StrEnum):
    GRPC = "gRPC"
    HTTP = "HTTP"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The port that a client needs."""

    protocol: Protocol
    port: str
    """Its name, and where its number is found."""


_NAMED: Final = "which the router's log names at its start"
ROUTER_GRPC: Final = Wanted(
    protocol=Protocol.GRPC, port=f"the gRPC port (--grpc-port, 8100 by default), {_NAMED}"
)
ROUTER_HTTP: Final = Wanted(protocol=Protocol.HTTP, port=f"the HTTP port (--port, 8000 by default), {_NAMED}")
WORKER_HTTP: Final = Wanted(protocol=Protocol.HTTP, port="the --metrics-port of a worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """The protocol that a port speaks, and what it asks of its clients."""

    protocol: Protocol
    is_encrypted: bool = False
    demands_certificate: bool = False

    def problem(self, wanted: Wanted, *, is_encrypted: bool, has_certificate: bool) -> str:
        """Say why a client of `wanted` gets no answer, and what to do; empty where that is not known."""
        if self.protocol is not wanted.protocol:
            return f"which speaks {self.protocol}; this command needs {wanted.port}"
        if self.is_encrypted and not is_encrypted:
            own = ", --ssl-certfile and --ssl-keyfile: it demands a certificate" * self.demands_certificate
            return f"which speaks TLS; give --ssl-ca-certs{own}"
        if is_encrypted and not self.is_encrypted:
            return "which speaks plain text; leave out --ssl-ca-certs"
        if self.demands_certificate and not has_certificate:
            return "which demands a client's certificate; give --ssl-certfile and --ssl-keyfile"
        return ""


def probe_port(host: str, port: int) -> Port | None:
    """Ask the port in plain text, then by TLS; None: nothing listens, or it speaks something else."""
    try:
        return _probe_plain(host, port) or _probe_tls(host, port)
    except OSError:
        return None


def _probe_plain(host: str, port: int) -> Port | None:
    with connect_to((host, port), _TIMEOUT_S) as connection:
        answer = _ask(connection)
    return None if (protocol := _protocol_of(answer)) is None else Port(protocol=protocol)


def _probe_tls(host: str, port: int) -> Port | None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    with (
        connect_to((host, port), _TIMEOUT_S) as connection,
        context.wrap_socket(connection) as encrypted,
    ):
        protocol = Protocol.GRPC if encrypted.selected_alpn_protocol() == "h2" else Protocol.HTTP
        # With TLS 1.3 a server asks for a certificate after the client's handshake: it hangs up then.
        return Port(protocol=protocol, is_encrypted=True, demands_certificate=not _ask(encrypted))


def _ask(connection: socket.socket) -> bytes:
    """Return the first bytes of an answer; none if the other side hangs up."""
    try:
        connection.sendall(_REQUEST)
        return connection.recv(16)
    except TimeoutError:
        raise
    except OSError:
        return b""


def _protocol_of(answer: bytes) -> Protocol | None:
    if answer.startswith(b"HTTP/"):
        return Protocol.HTTP
    is_frame = len(answer) > 3 and answer[0] == 0 and answer[3] == _SETTINGS
    return Protocol.GRPC if is_frame else None
