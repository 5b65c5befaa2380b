"""HTTP as a load generator needs it: as many connections as requests at a time, and when each piece came."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from baton_core.errors import InvalidConfigError

OnBody = Callable[[bytes, float], None]
"""Hears of a piece of an answer's body, and of the loop's time at which it came."""
KEPT_S: Final = 4.0
"""Seconds for which a connection is reused: one less than uvicorn's servers keep it open."""
_REDIRECTS: Final = (301, 302, 303, 307, 308)


class RedirectError(ValueError):
    """An answer that leads elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The address of a server, and the path before its routes."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    path: str = ""

    @classmethod
    def parse(cls, url: str, ca_certs: str = "", flag: str = "--base-url") -> Origin:
        """Read `http://host:port/path` or https; a `/v1` at its end is the first part of a route.

        Certificates are checked, against `ca_certs` if given. `flag` is what an error calls the URL.

        Raises:
            InvalidConfigError: it is no such URL, or there are no such certificates.
        """
        allowed = "http://host:port or https://host:port, with a path if routes stand below one"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise InvalidConfigError(f"{flag} is {url!r}; allowed: {allowed} ({error})") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise InvalidConfigError(f"{flag} is {url!r}; allowed: {allowed}")
        tls = None
        if parts.scheme == "https":
            try:
                tls = ssl.create_default_context(cafile=ca_certs or None)
            except OSError as error:
                raise InvalidConfigError(
                    f"--ssl-ca-certs is {ca_certs!r}; allowed: a file of certificates ({error})"
                ) from None
        default = 443 if tls else 80
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(host=parts.hostname, port=port or default, tls=tls, path=path)

    @property
    def url(self) -> str:
        """Without a slash at its end."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.path}"


class HttpClient:
    """A client of one server. All but its constructor runs on one loop.

    It asks for answers that are not compressed, and decodes those that are. It follows no redirect.

    Args:
        headers: of every request.
    """

    def __init__(self, origin: Origin, headers: Mapping[str, str]) -> None:
        self._origin = origin
        self._headers = CIMultiDict({"Content-Type": "application/json", "Accept-Encoding": "identity"})
        self._headers.update(headers)
        self._session: aiohttp.ClientSession | None = None

    async def request(
        self, method: str, path: str, body: bytes, on_body: OnBody, headers: Mapping[str, str] | None = None
    ) -> int:
        """Send a request and hand on its answer as it comes; returns the status. The caller sets a deadline.

        Raises:
            OSError: the server cannot be reached, or breaks off.
            RedirectError: it redirects.
            ValueError: it does not speak HTTP, or `on_body` raised it.
        """
        now_s = asyncio.get_running_loop().time
        url = URL(f"{self._origin.url}{path}", encoded=True)
        try:
            async with self._opened().request(
                method, url, data=body, headers=headers, allow_redirects=False
            ) as response:
                if response.status in _REDIRECTS:
                    place = response.headers.get("Location", "no address")
                    raise RedirectError(f"HTTP {response.status}: the server redirects to {place}")
                async for piece in response.content.iter_any():
                    on_body(piece, now_s())
                return response.status
        except aiohttp.ClientSSLError:
            raise
        except aiohttp.ClientConnectorError as error:
            raise ConnectionError(f"cannot connect to {self._origin.url}: {_reason(error)}") from None
        except aiohttp.ClientResponseError as error:
            raise ValueError(f"no HTTP answer: {error.message}") from None
        except aiohttp.ClientError as error:
            raise ConnectionResetError(f"the server closed the connection ({error})") from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _opened(self) -> aiohttp.ClientSession:
        """Made with the first request, for a session belongs to the running loop."""
        if self._session is None:
            tls = self._origin.tls if self._origin.tls is not None else True
            connector = aiohttp.TCPConnector(limit=0, ssl=tls, keepalive_timeout=KEPT_S)
            self._session = aiohttp.ClientSession(
                connector=connector,
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._session


def _reason(error: aiohttp.ClientConnectorError) -> str:
    cause = error.os_error
    if cause.errno is not None and cause.errno > 0:  # others are no numbers of the system's
        return os.strerror(cause.errno)
    return cause.strerror or str(cause)
