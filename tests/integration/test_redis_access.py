"""Redis behind a password, an ACL user or TLS; what is wrong is said without what is secret."""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from redis import exceptions

from baton_service.redis.link import RedisLink
from baton_service.redis.redis_settings import RedisSettings
from tests.integration.scripted_worker import until
from tests.integration.tcp_proxy import Proxy
from tests.redis_server import needs_redis, redis_server

pytestmark = needs_redis
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


async def ping(settings: RedisSettings) -> bool:
    link = RedisLink(settings)
    try:
        return bool(await link.command("PING"))
    finally:
        await link.close(lambda: link.command("PING"))


@pytest.mark.parametrize(
    ("options", "login"),
    [
        (("--requirepass", "pass%word"), ":pass%25word@"),
        (
            ("--user", "baton", "on", ">secret", "~test:*", "+@all", "--user", "default", "off"),
            "baton:secret@",
        ),
    ],
)
async def test_password_and_user_of_the_url_are_honoured(
    options: Sequence[str], login: str, tmp_path: Path
) -> None:
    async with redis_server(tmp_path, options=options, login=login) as server:
        assert await ping(server.settings())
        with pytest.raises(exceptions.AuthenticationError):
            await ping(RedisSettings(url=f"redis://127.0.0.1:{server.port}"))


@needs_openssl
async def test_tls_is_spoken_with_who_has_a_certificate_that_the_url_trusts(tmp_path: Path) -> None:
    async with redis_server(
        tmp_path, options=_tls_options(tmp_path), scheme="rediss", query=f"?ssl_ca_certs={tmp_path}/cert.pem"
    ) as server:
        assert await ping(server.settings())
        with pytest.raises(exceptions.ConnectionError, match="certificate verify failed"):
            await ping(RedisSettings(url=f"rediss://127.0.0.1:{server.port}"))
        with pytest.raises(exceptions.ConnectionError):
            await ping(RedisSettings(url=f"redis://127.0.0.1:{server.port}"))


async def test_a_wrong_password_is_logged_without_it_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        async with redis_server(tmp_path, options=("--requirepass", "right"), login=":right@") as server:
            url = f"redis://:wr0ng@127.0.0.1:{server.port}"
            link = RedisLink(RedisSettings(url=url))

            async def step() -> None:
                await link.command("PING")
                await asyncio.sleep(0.01)

            trying = asyncio.create_task(link.keep_doing("the test", step))
            await until(lambda: "fails, going on without it" in caplog.text)
            assert not link.state.is_up
            await server.ask("CONFIG", "SET", "requirepass", "wr0ng")
            await until(lambda: link.state.is_up)
            trying.cancel()
            await asyncio.gather(trying, return_exceptions=True)
            await link.close(lambda: link.command("PING"))
    assert "is back" in caplog.text
    assert "wr0ng" not in caplog.text


async def test_a_failover_by_exchanged_roles_is_followed(tmp_path: Path) -> None:
    async with redis_server(tmp_path) as old, redis_server(tmp_path) as new:
        proxy = Proxy(old.port)
        async with proxy as port:
            link = RedisLink(RedisSettings(url=f"redis://127.0.0.1:{port}"))

            async def step() -> None:
                await link.command("SET", "written", "1")
                await asyncio.sleep(0.01)

            trying = asyncio.create_task(link.keep_doing("the test", step))
            await until(lambda: link.state.is_up)
            proxy.port = new.port
            await old.ask("REPLICAOF", "127.0.0.1", new.port)
            await until(lambda: proxy.num_connections > 1)
            while await new.ask("GET", "written") != b"1":  # noqa: ASYNC110 (nothing tells of it)
                await asyncio.sleep(0.01)
            trying.cancel()
            await asyncio.gather(trying, return_exceptions=True)
            await link.close(lambda: link.command("PING"))


def _tls_options(folder: Path) -> tuple[str, ...]:
    """Options of a server with a certificate that is its own authority's."""
    key, certificate = str(folder / "key.pem"), str(folder / "cert.pem")
    names = ("-subj", "/CN=redis", "-addext", "subjectAltName=IP:127.0.0.1")
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    command = ("openssl", "req", "-x509", *kind, *names, "-keyout", key, "-out", certificate)
    subprocess.run(command, check=True, capture_output=True)
    files = ("--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", certificate)
    return (*files, "--tls-auth-clients", "no")
