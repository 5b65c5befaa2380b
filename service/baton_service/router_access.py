"""Access to routers: TLS, read once, and the key that calls name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from http.client import HTTPConnection, HTTPSConnection
from typing import Any, Final, TypeAlias

import grpc

from baton_service.grpc_options import DIRECT, Options, client_options
from baton_service.keys import AUTHORIZATION, bearer
from baton_service.port_probe import ROUTER_GRPC, Protocol, Wanted, probe_port
from baton_service.tls import ClientTls

_SAYS_ALL: Final = ("Connection refused", "errors resolving", "DNS resolution failed")
_OF_HTTP: Final = ("http1.x server", "Failed parsing HTTP/2", "missing selected ALPN property")
"""Parts of gRPC's words for a server that speaks HTTP/1.1, without TLS and with it."""
Metadata: TypeAlias = tuple[tuple[str, str], ...]


class RouterAccess:
    """Opens channels to routers.

    Raises:
        InvalidConfigError: a file cannot be read.
    """

    def __init__(self, tls: ClientTls | None = None, key: str = "") -> None:
        self._tls = tls = tls or ClientTls()
        self.metadata: Final[Metadata] = ((AUTHORIZATION, bearer(key)),) if key else ()
        """Metadata that names the key in a call."""
        self._credentials = tls.grpc_credentials()
        self._names = (("grpc.ssl_target_name_override", tls.router_name),) if tls.router_name else ()

    @property
    def is_encrypted(self) -> bool:
        return self._credentials is not None

    @property
    def may_lack_certificate(self) -> bool:
        """True if a router that demands a certificate would get none."""
        return self.is_encrypted and not self._tls.certfile

    def port_problem(self, address: str, wanted: Wanted) -> str:
        """Say why `address` does not answer a client of `wanted`, as far as it shows; else empty."""
        host, _, port = address.rpartition(":")
        found = probe_port(host.strip("[]"), int(port))
        if found is None:
            return ""
        has_certificate = bool(self._tls.certfile)
        return found.problem(wanted, is_encrypted=self.is_encrypted, has_certificate=has_certificate)

    def open_channel(self, address: str) -> grpc.Channel:
        """A channel to the router at `address` whose calls name the key."""
        options = (*client_options(), *DIRECT, *self._names)
        if self._credentials is None:
            channel = grpc.insecure_channel(address, options=options)
        else:
            channel = grpc.secure_channel(address, self._credentials, options=options)
        return grpc.intercept_channel(channel, _KeyOfEachCall(self.metadata)) if self.metadata else channel

    def open_async_channel(self, address: str, options: Options = ()) -> grpc.aio.Channel:
        """The same on the running loop, with `options` or a client's; its calls have to give `metadata`."""
        options = (*(options or client_options()), *DIRECT)
        if self._credentials is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, self._credentials, options=(*options, *self._names))

    def open_http(self, address: str, timeout_s: float) -> HTTPConnection:
        """An HTTP connection to the router at `address`; its requests have to give `metadata`."""
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        if not self._tls.is_on:
            return HTTPConnection(host, int(port), timeout=timeout_s)
        return _NamedHttps(host, int(port), self._tls, timeout_s)

    def advice(self, code: grpc.StatusCode | None, details: str) -> str:
        """Return advice for a call that ended like this; empty where there is none."""
        if code is grpc.StatusCode.UNAUTHENTICATED:
            return "; it wants a key, by --api-key or BATON_API_KEY"
        if code is not grpc.StatusCode.UNAVAILABLE or any(sign in details for sign in _SAYS_ALL):
            return ""
        if any(sign in details for sign in _OF_HTTP):
            return f"; it speaks {Protocol.HTTP}, and a worker needs {ROUTER_GRPC.port}"
        if "WRONG_VERSION_NUMBER" in details:
            return "; it speaks plain text, here is --ssl-ca-certs"
        if self._credentials is None:
            return "; if it speaks TLS, it wants --ssl-ca-certs"
        if "certificate has expired" in details:
            return "; that is the router's certificate"
        if "CERTIFICATE_VERIFY_FAILED" in details:
            return "; its certificate is not of the authority in --ssl-ca-certs"
        if "Hostname Verification Check failed" in details:
            return "; its certificate has another name, which --ssl-router-name is to give"
        if not self._tls.certfile:
            return "; if it demands a certificate, it wants --ssl-certfile"
        return "; it may refuse the one of --ssl-certfile" if "Socket closed" in details else ""


class _NamedHttps(HTTPSConnection):
    """Expects the configured name in the router's certificate."""

    def __init__(self, host: str, port: int, tls: ClientTls, timeout_s: float) -> None:
        self._tls_context = tls.client_context()
        self._router_name = tls.router_name or host
        super().__init__(host, port, timeout=timeout_s, context=self._tls_context)

    def connect(self) -> None:
        HTTPConnection.connect(self)
        self.sock = self._tls_context.wrap_socket(self.sock, server_hostname=self._router_name)


@dataclass(frozen=True, slots=True)
class _Call(grpc.ClientCallDetails):  # type: ignore[misc]
    """A call as the interceptor passes it on."""

    method: str
    _: KW_ONLY
    timeout: float | None
    metadata: Metadata
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: grpc.Compression | None


class _KeyOfEachCall(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[misc]
    """Adds metadata to calls with one request."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return continuation(self._with_key(details), request)

    def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return continuation(self._with_key(details), request)

    def _with_key(self, details: Any) -> _Call:
        return _Call(
            details.method,
            timeout=details.timeout,
            metadata=(*(details.metadata or ()), *self._metadata),
            credentials=details.credentials,
            wait_for_ready=details.wait_for_ready,
            compression=details.compression,
        )
