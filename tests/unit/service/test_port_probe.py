"""A port shows what it speaks, and a client is told what it has to give."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from baton_service.port_probe import ROUTER_GRPC, ROUTER_HTTP, Port, Protocol, probe_port
from baton_service.tls import ServerTls
from tests.certificates import Authority, needs_openssl


@contextmanager
def grpc_port(tls: ServerTls | None = None) -> Iterator[int]:
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        credentials = None if tls is None else tls.grpc_credentials()
        if credentials is None:
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        yield port
        server.stop(None).wait()


def test_a_grpc_port_is_known_by_its_first_frame() -> None:
    with grpc_port() as port:
        assert probe_port("127.0.0.1", port) == Port(protocol=Protocol.GRPC)
    assert probe_port("127.0.0.1", port) is None


@needs_openssl
def test_tls_and_a_demand_for_a_certificate_are_seen(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path)
    pair = authority.issue("router")
    for ca_certs in ("", authority.own.certfile):
        tls = ServerTls(certfile=pair.certfile, keyfile=pair.keyfile, grpc_ca_certs=ca_certs)
        with grpc_port(tls) as port:
            found = probe_port("127.0.0.1", port)
        assert found == Port(protocol=Protocol.GRPC, is_encrypted=True, demands_certificate=bool(ca_certs))


PLAIN = Port(protocol=Protocol.GRPC)
ENCRYPTED = Port(protocol=Protocol.GRPC, is_encrypted=True)
DEMANDING = Port(protocol=Protocol.GRPC, is_encrypted=True, demands_certificate=True)


@pytest.mark.parametrize(
    ("port", "is_encrypted", "has_certificate", "told"),
    [
        (PLAIN, False, False, ""),
        (PLAIN, True, False, "plain text; leave out --ssl-ca-certs"),
        (ENCRYPTED, False, False, "speaks TLS; give --ssl-ca-certs"),
        (ENCRYPTED, True, False, ""),
        (DEMANDING, False, False, "give --ssl-ca-certs, --ssl-certfile and --ssl-keyfile: it demands"),
        (DEMANDING, True, False, "demands a client's certificate; give --ssl-certfile"),
        (DEMANDING, True, True, ""),
    ],
)
def test_a_client_is_told_what_it_has_to_give(
    port: Port, is_encrypted: bool, has_certificate: bool, told: str
) -> None:
    problem = port.problem(ROUTER_GRPC, is_encrypted=is_encrypted, has_certificate=has_certificate)
    assert told in problem if told else not problem
    wrong = port.problem(ROUTER_HTTP, is_encrypted=is_encrypted, has_certificate=has_certificate)
    assert wrong.startswith("which speaks gRPC; this command needs the HTTP port")
