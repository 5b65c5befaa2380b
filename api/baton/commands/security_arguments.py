"""Flags of TLS and keys: of a router, of its workers, of its clients."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from baton.config.environment import ENVIRONMENT, KEY_VARIABLES
from baton.config.flags import Flag, Pattern, Range
from baton_core.errors import InvalidConfigError

if TYPE_CHECKING:
    from baton_service.router_access import RouterAccess
    from baton_service.tls import ClientTls, ServerTls

KEY: Final = Pattern(r"[\x21-\x7e]{1,128}", "1 to 128 visible ASCII characters")


def _file(name: str, text: str) -> Flag:
    return Flag(name, str, "", text, metavar="FILE")


def _keys(text: str) -> Flag:
    text = f"{text}; repeatable; default: {' or '.join(KEY_VARIABLES)} of the environment"
    return Flag("--api-key", str, (), text, KEY, is_list=True, metavar="KEY")


_OPEN_METRICS: Final = Flag("--open-metrics", bool, False, "let /metrics be read without a key")
_ROUTER_NAME: Final = Flag(
    "--ssl-router-name", str, "", "name in the routers' certificates; default: the host that is dialed"
)
_PEER_ENCRYPTION: Final = Flag(
    "--peer-encryption", bool, True, "encrypt traffic between workers where routers are reached by TLS"
)
_CLIENT_TLS: Final = (
    _file("--ssl-ca-certs", "authority of the routers' certificates, PEM; default: plain text"),
    _file("--ssl-certfile", "certificate to show, PEM; default: none"),
    _file("--ssl-keyfile", "private key of that certificate, PEM; default: in --ssl-certfile"),
    _ROUTER_NAME,
)
ROUTER_SECURITY_FLAGS: Final = (
    _keys("key that clients need, over HTTP and gRPC, and workers without certificates"),
    _OPEN_METRICS,
    _file("--ssl-keyfile", "private key, PEM; default: in --ssl-certfile"),
    _file("--ssl-certfile", "certificate of both ports, PEM; default: plain text"),
    _file("--ssl-ca-certs", "authority of HTTP clients' certificates, PEM; default: none"),
    Flag(
        "--ssl-ciphers",
        str,
        "",
        "cipher suites of HTTPS up to TLS 1.2, as OpenSSL lists them; default: the system's",
        metavar="LIST",
    ),
    Flag(
        "--ssl-cert-reqs",
        int,
        0,
        "certificates of HTTP clients: 0 not asked for, 1 checked where shown, 2 demanded, "
        "then of gRPC clients and workers too",
        Range(0, 2),
    ),
    _file(
        "--ssl-grpc-ca-certs",
        "authority of the certificates that gRPC clients and workers must show, PEM; default: with "
        "--ssl-cert-reqs 2 that of --ssl-ca-certs, else they need none",
    ),
)
WORKER_SECURITY_FLAGS: Final = (
    _keys("key for the routers, the first one, and for this worker's /metrics"),
    _OPEN_METRICS,
    *_CLIENT_TLS,
    _PEER_ENCRYPTION,
)
SERVE_SECURITY_FLAGS: Final = (_ROUTER_NAME, _PEER_ENCRYPTION)
CLIENT_SECURITY_FLAGS: Final = (
    Flag(
        "--api-key",
        str,
        None,
        f"a key of the router; default: {' or '.join(KEY_VARIABLES)} of the environment",
        KEY,
        metavar="KEY",
    ),
    *_CLIENT_TLS,
)


def key_of_environment(*names: str) -> str:
    """The first of these variables that is set, without white space around it; empty: none is.

    Raises:
        InvalidConfigError: it has characters that no header takes.
    """
    for name in names:
        if key := ENVIRONMENT.get(name, "").strip():  # files that secrets are made from end with a newline
            if not all("!" <= character <= "~" for character in key):
                raise InvalidConfigError(f"{name} has other characters; allowed: visible ASCII")
            return key
    return ""


def keys_of(args: argparse.Namespace) -> tuple[str, ...]:
    """The keys that are given, or the one of the environment.

    Raises:
        InvalidConfigError: that one has characters that no header takes.
    """
    return args.api_key or tuple(filter(None, (key_of_environment(*KEY_VARIABLES),)))


def server_tls(args: argparse.Namespace) -> ServerTls:
    """A router's.

    Raises:
        InvalidConfigError: a file cannot be used.
    """
    from baton_service.tls import ServerTls

    return ServerTls(
        certfile=args.ssl_certfile,
        keyfile=args.ssl_keyfile,
        ca_certs=args.ssl_ca_certs,
        cert_reqs=args.ssl_cert_reqs,
        ciphers=args.ssl_ciphers,
        grpc_ca_certs=args.ssl_grpc_ca_certs,
    )


def client_tls(args: argparse.Namespace) -> ClientTls:
    """A worker's or a client's.

    Raises:
        InvalidConfigError: a file cannot be used.
    """
    from baton_service.tls import ClientTls

    return ClientTls(
        ca_certs=args.ssl_ca_certs,
        certfile=args.ssl_certfile,
        keyfile=args.ssl_keyfile,
        router_name=args.ssl_router_name,
    )


def router_access(args: argparse.Namespace) -> RouterAccess:
    """A client's way in.

    Raises:
        InvalidConfigError: a file cannot be used.
    """
    from baton_service.router_access import RouterAccess

    return RouterAccess(client_tls(args), args.api_key or key_of_environment(*KEY_VARIABLES))


def local_worker_flags(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the flags of workers that `serve` starts: they trust and present its router's certificate."""
    texts = [f"--api-key={key}" for key in args.api_key]
    texts += [*_OPEN_METRICS.given(args.open_metrics), *_PEER_ENCRYPTION.given(args.peer_encryption)]
    if args.ssl_certfile:
        texts += [f"--ssl-ca-certs={args.ssl_certfile}", f"--ssl-certfile={args.ssl_certfile}"]
        texts += [f"--ssl-keyfile={args.ssl_keyfile}", *_ROUTER_NAME.given(args.ssl_router_name)]
    return tuple(texts)
