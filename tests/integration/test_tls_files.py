"""Files of certificates and keys that cannot be used are refused before anything starts."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest

from baton_core.errors import InvalidConfigError
from baton_service.router_access import RouterAccess
from baton_service.tls import ClientTls, ServerTls
from tests.certificates import Authority, Pair, needs_openssl

pytestmark = needs_openssl


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("router")


def test_each_side_takes_what_belongs_together(authority: Authority, pair: Pair, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_text(Path(pair.keyfile).read_text() + Path(pair.certfile).read_text())
    ca = authority.own.certfile
    for certfile, keyfile in ((pair.certfile, pair.keyfile), (str(both), "")):
        assert ServerTls(certfile=certfile, keyfile=keyfile).grpc_credentials() is not None
        assert ClientTls(ca_certs=ca, certfile=certfile, keyfile=keyfile).grpc_credentials() is not None
    assert ServerTls().grpc_credentials() is None
    assert ClientTls().grpc_credentials() is None


def test_https_has_the_ciphers_that_are_given(pair: Pair) -> None:
    tls = ServerTls(certfile=pair.certfile, keyfile=pair.keyfile, ciphers="ECDHE-ECDSA-AES256-GCM-SHA384")
    context = tls.http_context()
    assert context is not None
    older = {one["name"] for one in context.get_ciphers() if one["protocol"] == "TLSv1.2"}
    assert older == {"ECDHE-ECDSA-AES256-GCM-SHA384"}


@pytest.mark.parametrize(
    ("settings", "authority_of_grpc"),
    [
        ({}, ""),
        ({"cert_reqs": 1, "ca_certs": "CA"}, ""),
        ({"cert_reqs": 2, "ca_certs": "CA"}, "CA"),
        ({"ca_certs": "CA", "grpc_ca_certs": "ROUTER"}, "ROUTER"),
        ({"grpc_ca_certs": "CA"}, "CA"),
    ],
)
def test_the_grpc_port_demands_certificates_of_its_own_authority_or_with_the_http_port(
    authority: Authority, pair: Pair, settings: dict[str, Any], authority_of_grpc: str
) -> None:
    files = {"CA": authority.own.certfile, "ROUTER": pair.certfile, "": ""}
    given = {name: files.get(value, value) for name, value in settings.items()}
    tls = ServerTls(certfile=pair.certfile, keyfile=pair.keyfile, **given)
    assert tls.grpc_authority == files[authority_of_grpc]


def test_a_certificate_that_has_expired_is_refused_at_start(authority: Authority) -> None:
    old = authority.issue_expired("old")
    with pytest.raises(InvalidConfigError, match=r"--ssl-certfile is '.*', which has expired; allowed: one"):
        ServerTls(certfile=old.certfile, keyfile=old.keyfile)
    with pytest.raises(InvalidConfigError, match="which has expired"):
        ClientTls(ca_certs=authority.own.certfile, certfile=old.certfile, keyfile=old.keyfile)


@pytest.mark.parametrize(
    ("details", "advice"),
    [
        ("CERTIFICATE_VERIFY_FAILED: certificate has expired", "; that is the router's certificate"),
        ("CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate", "; its certificate is not of"),
        ("Socket closed", "; it may refuse the one of --ssl-certfile"),
        ("DNS resolution failed", ""),
        ("errors resolving router:8100: Domain name not found", ""),
        ("Hostname Verification Check failed.", "; its certificate has another name, which"),
        ("Cannot check peer: missing selected ALPN property.", "; it speaks HTTP, and a worker"),
        ("Trying to connect an http1.x server (HTTP status 400)", "; it speaks HTTP, and a worker needs"),
    ],
)
def test_advice_tells_the_routers_certificate_from_ones_own(
    authority: Authority, pair: Pair, details: str, advice: str
) -> None:
    tls = ClientTls(ca_certs=authority.own.certfile, certfile=pair.certfile, keyfile=pair.keyfile)
    assert RouterAccess(tls).advice(grpc.StatusCode.UNAVAILABLE, details).startswith(advice)


def test_an_error_names_flag_and_file_and_what_is_allowed(
    authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    garbage, locked = tmp_path / "garbage.pem", tmp_path / "locked.key"
    garbage.write_text("no PEM")
    encrypt = (
        "openssl",
        "ec",
        "-in",
        pair.keyfile,
        "-aes128",
        "-passout",
        "pass:secret",
        "-out",
        str(locked),
    )
    subprocess.run(encrypt, check=True, capture_output=True, timeout=60.0)
    absent, other = str(tmp_path / "absent.pem"), authority.own.keyfile
    certfile, keyfile = pair.certfile, pair.keyfile
    served = {"certfile": certfile, "keyfile": keyfile}
    cases: list[tuple[type, dict[str, Any], str]] = [
        (ServerTls, {"certfile": absent}, f"--ssl-certfile is {absent!r}, which cannot be read"),
        (ServerTls, {**served, "keyfile": absent}, f"--ssl-keyfile is {absent!r}, which cannot be read"),
        (ServerTls, {**served, "keyfile": other}, f"{certfile!r} and --ssl-keyfile is {other!r}, which"),
        (ServerTls, {**served, "keyfile": str(locked)}, "the key without a passphrase"),
        (ServerTls, {"certfile": certfile}, "--ssl-keyfile is not given, which cannot be used"),
        (ServerTls, {"keyfile": keyfile}, f"--ssl-keyfile is {keyfile!r} without --ssl-certfile; allowed"),
        (ServerTls, {"cert_reqs": 2}, "--ssl-cert-reqs is '2' without --ssl-certfile"),
        (ServerTls, {**served, "cert_reqs": 2}, "--ssl-cert-reqs is '2' without --ssl-ca-certs"),
        (ServerTls, {"ciphers": "AES256-SHA256"}, "--ssl-ciphers is 'AES256-SHA256' without --ssl-certfile"),
        (ServerTls, {**served, "ciphers": "none"}, "--ssl-ciphers is 'none'; allowed: suites as"),
        (ServerTls, {**served, "cert_reqs": 3}, "--ssl-cert-reqs is 3; allowed: 0, 1, 2"),
        (
            ServerTls,
            {**served, "grpc_ca_certs": str(garbage)},
            f"--ssl-grpc-ca-certs is {str(garbage)!r}, which",
        ),
        (ClientTls, {"ca_certs": str(garbage)}, "allowed: certificates in PEM"),
        (ClientTls, served, f"--ssl-certfile is {certfile!r} without --ssl-ca-certs"),
        (ClientTls, {"ca_certs": certfile, "keyfile": keyfile}, "without --ssl-certfile"),
        (ClientTls, {"router_name": "r"}, "--ssl-router-name is 'r' without --ssl-ca-certs"),
    ]
    for kind, settings, said in cases:
        with pytest.raises(InvalidConfigError, match=re.escape(said)):
            kind(**settings)
