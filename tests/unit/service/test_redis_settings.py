from __future__ import annotations

import pytest

from baton_core.errors import InvalidConfigError
from baton_service.redis.link import RedisLink
from baton_service.redis.redis_settings import RedisSettings


@pytest.mark.parametrize(
    ("url", "endpoint", "shown"),
    [
        ("redis://cache", "cache:6379", "redis://cache"),
        ("redis://cache:7000/2", "cache:7000", "redis://cache:7000/2"),
        (
            "rediss://user:secret@10.0.0.7:7000?ssl_ca_certs=/ca.pem",
            "10.0.0.7:7000",
            "rediss://10.0.0.7:7000",
        ),
        ("redis://[fd00::7]:7000", "[fd00::7]:7000", "redis://[fd00::7]:7000"),
        ("unix:///run/redis.sock", "127.0.0.1:6379", "unix:///run/redis.sock"),
    ],
)
def test_a_url_is_read_and_shown_without_what_is_secret(url: str, endpoint: str, shown: str) -> None:
    settings = RedisSettings(url=url)
    assert (settings.endpoint, settings.shown_url) == (endpoint, shown)
    assert "secret" not in repr(settings)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://user:secret@cache", "has none of these schemes"),
        ("cache:6379", "has none of these schemes"),
        ("redis://user:secret@cache:seven", "cannot be read"),
        ("redis://:1st/secret@cache", "cannot be read .a user or password writes / . # @ as %2F"),
        ("redis://:se#secret@cache", "cannot be read"),
        ("redis://:12/secret@cache", "has @ behind its host"),
        ("redis://:12?secret@cache", "has @ behind its host"),
        ("redis://:12#secret@cache", "has @ behind its host"),
        ("unix://", "names no socket"),
    ],
)
def test_a_url_that_cannot_be_one_is_refused_without_being_shown(url: str, reason: str) -> None:
    with pytest.raises(
        InvalidConfigError, match=rf"--redis is a URL that {reason}.*; allowed: redis://"
    ) as error:
        RedisSettings(url=url)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("query", "reason"),
    [("colour=red", "cannot use .*colour"), ("db=one", "cannot use"), ("protocol=3", "sets one of protocol")],
)
async def test_parameters_that_cannot_hold_are_refused(query: str, reason: str) -> None:
    with pytest.raises(InvalidConfigError, match=reason):
        RedisLink(RedisSettings(url=f"redis://cache?{query}"))


async def test_an_authority_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match=r"names a file that cannot be used .No such file"):
        RedisLink(RedisSettings(url="rediss://cache?ssl_ca_certs=/missing.pem"))


@pytest.mark.parametrize("namespace", ["", "a:b", "a b", "x" * 65])
def test_a_namespace_that_keys_could_not_carry_is_refused(namespace: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"--redis-namespace is .*; allowed: 1 to 64 letters"):
        RedisSettings(namespace=namespace)
