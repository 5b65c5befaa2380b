"""The address of a cluster's Redis. Separate from the client, which only processes with Redis import."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, urlsplit

from baton_core.errors import InvalidConfigError

_SCHEMES: Final = ("redis", "rediss", "unix")
_DEFAULT_PORT: Final = 6379
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ESCAPES: Final = "a user or password writes / ? # @ as %2F %3F %23 %40"
_ALLOWED: Final = "redis://HOST:PORT, rediss://USER:PASSWORD@HOST:PORT, unix://PATH"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSettings:
    """The address of a Redis, and the cluster's namespace in it.

    Raises:
        InvalidConfigError: a value cannot hold; the message shows no password.
    """

    url: str = field(default="", repr=False)
    """URL for redis-py; empty without Redis."""
    namespace: str = "baton"
    """Namespace of the cluster: clusters that share a Redis have different ones."""

    def __post_init__(self) -> None:
        if self.url:
            _split(self.url)
        if not _NAMESPACE.fullmatch(self.namespace):
            allowed = "1 to 64 letters, digits, dots, dashes and underscores"
            raise InvalidConfigError(f"--redis-namespace is {self.namespace!r}; allowed: {allowed}")

    @property
    def is_given(self) -> bool:
        return bool(self.url)

    @property
    def shown_url(self) -> str:
        """URL for logs, without user, password and parameters."""
        parts = _split(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def endpoint(self) -> str:
        """`host:port`; this machine for a socket in the file system."""
        parts = _split(self.url)
        host = parts.hostname or "127.0.0.1"
        shown = f"[{host}]" if ":" in host else host
        return f"{shown}:{parts.port or _DEFAULT_PORT}"


def refused_url(reason: str) -> InvalidConfigError:
    """The error for a URL that cannot be used; it may hold a password, so it is not shown."""
    return InvalidConfigError(f"--redis is a URL that {reason}; allowed: {_ALLOWED}, and what redis-py adds")


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise refused_url(f"cannot be read ({_ESCAPES})") from None
    if parts.scheme not in _SCHEMES:
        raise refused_url("has none of these schemes")
    if parts.scheme != "unix" and "@" in f"{parts.path}?{parts.query}#{parts.fragment}":
        raise refused_url(f"has @ behind its host ({_ESCAPES})")
    if parts.scheme == "unix" and not parts.path:
        raise refused_url("names no socket")
    return parts
