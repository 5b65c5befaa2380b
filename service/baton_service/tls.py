"""TLS as operators set it: files in PEM, checked before anything starts, and read once.

A process that has started keeps what it has read: a certificate is renewed by a restart.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from baton_core.errors import InvalidConfigError

CERT_NONE: Final = int(ssl.CERT_NONE)
CERT_REQUIRED: Final = int(ssl.CERT_REQUIRED)
"""The values of `--ssl-cert-reqs` are those of the standard library."""

_EXPIRED: Final = 10
"""OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """TLS of a router, on both of its ports; without a certificate it serves plain text.

    Raises:
        InvalidConfigError: a file cannot be used; the message names flag, file and what is allowed.
    """

    certfile: str = ""
    """Certificate, and those that lead from it to its authority."""
    keyfile: str = ""
    """Its private key; empty: it is in `certfile`."""
    ca_certs: str = ""
    """Authority of the certificates that HTTP clients show."""
    cert_reqs: int = CERT_NONE
    """Client certificates: 0 none, 1 optional, 2 required, of gRPC clients and workers too."""
    ciphers: str = ""
    """Cipher suites of HTTPS up to TLS 1.2; empty: OpenSSL's own choice."""
    grpc_ca_certs: str = ""
    """Authority of the certificates that gRPC clients and workers must show."""

    def __post_init__(self) -> None:
        if self.cert_reqs not in tuple(ssl.VerifyMode):
            raise InvalidConfigError(f"--ssl-cert-reqs is {self.cert_reqs!r}; allowed: 0, 1, 2")
        if not self.certfile:
            _refuse_without("--ssl-certfile", self._given)
            return
        _check_certificate(self.certfile, self.keyfile)
        for flag, file in (("--ssl-ca-certs", self.ca_certs), ("--ssl-grpc-ca-certs", self.grpc_ca_certs)):
            _check_authority(flag, file)
        self._check_ciphers()
        if self.cert_reqs and not self.ca_certs:
            _refuse_without("--ssl-ca-certs", {"--ssl-cert-reqs": str(self.cert_reqs)})

    def _check_ciphers(self) -> None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(self.ciphers or "DEFAULT")
        except ssl.SSLError:
            allowed = "suites as `openssl ciphers` lists them, separated by colons"
            raise InvalidConfigError(f"--ssl-ciphers is {self.ciphers!r}; allowed: {allowed}") from None

    @property
    def grpc_authority(self) -> str:
        """File of the authority whose certificates the gRPC port demands; empty: it demands none."""
        return self.grpc_ca_certs or (self.ca_certs if self.cert_reqs == CERT_REQUIRED else "")

    def http_context(self) -> ssl.SSLContext | None:
        """For the HTTP port; None: plain text."""
        if not self.certfile:
            return None
        context = _server_context(self.certfile, self.keyfile)
        context.verify_mode = ssl.VerifyMode(self.cert_reqs)
        if self.ciphers:
            context.set_ciphers(self.ciphers)
        if self.ca_certs:
            context.load_verify_locations(self.ca_certs)
        return context

    def grpc_credentials(self, *, asks_clients: bool = True) -> grpc.ServerCredentials | None:
        """For the gRPC port, whose clients show certificates where `asks_clients`; None: plain text."""
        if not self.certfile:
            return None
        authority = self.grpc_authority if asks_clients else ""
        return grpc.ssl_server_credentials(
            [(_read("--ssl-keyfile", self.keyfile or self.certfile), _read("--ssl-certfile", self.certfile))],
            root_certificates=_read("authority", authority) if authority else None,
            require_client_auth=bool(authority),
        )

    @property
    def _given(self) -> dict[str, str]:
        return {
            "--ssl-keyfile": self.keyfile,
            "--ssl-ca-certs": self.ca_certs,
            "--ssl-grpc-ca-certs": self.grpc_ca_certs,
            "--ssl-cert-reqs": str(self.cert_reqs or ""),
            "--ssl-ciphers": self.ciphers,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """TLS of a worker or client towards routers; without an authority it uses plain text.

    Raises:
        InvalidConfigError: a file cannot be used; the message names flag, file and what is allowed.
    """

    ca_certs: str = ""
    """Authority of the routers' certificates."""
    certfile: str = ""
    """Certificate that it presents, if any."""
    keyfile: str = ""
    router_name: str = ""
    """The name that a router's certificate must have; empty: the host that is dialed."""

    def __post_init__(self) -> None:
        if not self.ca_certs:
            given = {"--ssl-certfile": self.certfile, "--ssl-keyfile": self.keyfile}
            _refuse_without("--ssl-ca-certs", {**given, "--ssl-router-name": self.router_name})
            return
        _check_authority("--ssl-ca-certs", self.ca_certs)
        if self.certfile:
            _check_certificate(self.certfile, self.keyfile)
        else:
            _refuse_without("--ssl-certfile", {"--ssl-keyfile": self.keyfile})

    @property
    def is_on(self) -> bool:
        return bool(self.ca_certs)

    def grpc_credentials(self) -> grpc.ChannelCredentials | None:
        """For channels to routers; None: plain text."""
        if not self.is_on:
            return None
        authority = _read("--ssl-ca-certs", self.ca_certs)
        if not self.certfile:
            return grpc.ssl_channel_credentials(authority)
        key = _read("--ssl-keyfile", self.keyfile or self.certfile)
        return grpc.ssl_channel_credentials(authority, key, _read("--ssl-certfile", self.certfile))

    def client_context(self) -> ssl.SSLContext:
        """For HTTPS to routers; `is_on` holds."""
        context = ssl.create_default_context(cafile=self.ca_certs)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in gRPC: a server's own is enough
        if self.certfile:
            context.load_cert_chain(self.certfile, self.keyfile or None)
        return context

    def server_context(self) -> ssl.SSLContext | None:
        """For what this process itself serves; None: it has no certificate."""
        return _server_context(self.certfile, self.keyfile) if self.certfile else None


def _refuse_without(needed: str, given: dict[str, str]) -> None:
    for flag, value in given.items():
        if value:
            raise InvalidConfigError(f"{flag} is {value!r} without {needed}; allowed: beside {needed}")


def _read(flag: str, file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise InvalidConfigError(
            f"{flag} is {file!r}, which cannot be read ({error.strerror}); allowed: a file in PEM"
        ) from None


def _server_context(certfile: str, keyfile: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # A passphrase would be requested at the terminal; with an empty one such a key is refused.
    context.load_cert_chain(certfile, keyfile or None, password="")
    return context


def _check_certificate(certfile: str, keyfile: str) -> None:
    _read("--ssl-certfile", certfile)
    _read("--ssl-keyfile", keyfile or certfile)
    try:
        context = _server_context(certfile, keyfile)
    except (ssl.SSLError, ValueError) as error:
        key = f"--ssl-keyfile is {keyfile!r}" if keyfile else "--ssl-keyfile is not given"
        raise InvalidConfigError(
            f"--ssl-certfile is {certfile!r} and {key}, which cannot be used ({_reason(error)}); "
            "allowed: a certificate and its own private key, in PEM, the key without a passphrase"
        ) from None
    if _is_expired(certfile, context):
        raise InvalidConfigError(
            f"--ssl-certfile is {certfile!r}, which has expired; allowed: one that is valid"
        )


def _is_expired(certfile: str, context: ssl.SSLContext) -> bool:
    """Return True if `certfile`, which the server's `context` shows, has expired; by a handshake."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.load_verify_locations(certfile)
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = trusting.wrap_bio(back, there), context.wrap_bio(there, back, server_side=True)
    for end in (client, server, client):
        try:
            end.do_handshake()
        except ssl.SSLCertVerificationError as error:
            return error.verify_code == _EXPIRED
        except ssl.SSLError:
            pass  # it waits for the other end
    return False


def _check_authority(flag: str, file: str) -> None:
    if not file:
        return
    _read(flag, file)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except ssl.SSLError as error:
        raise InvalidConfigError(
            f"{flag} is {file!r}, which cannot be used ({_reason(error)}); allowed: certificates in PEM"
        ) from None


def _reason(error: Exception) -> str:
    return (error.reason or str(error)) if isinstance(error, ssl.SSLError) else str(error)
