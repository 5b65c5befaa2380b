"""Files of a batch that are behind URLs: read by GET, written by PUT."""

from __future__ import annotations

from pathlib import Path

import aiohttp

from baton_core.errors import InvalidConfigError


def is_url(name: str) -> bool:
    """Return whether a file's name is an HTTP URL."""
    return name.startswith(("http://", "https://"))


async def download(url: str, path: Path) -> None:
    """Write what a URL answers to a file.

    Raises:
        InvalidConfigError: it cannot be read.
    """
    try:
        async with aiohttp.ClientSession(raise_for_status=True) as session, session.get(url) as answer:
            with path.open("wb") as file:
                async for piece in answer.content.iter_any():
                    file.write(piece)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise InvalidConfigError(f"--input-file is {url!r}; allowed: a URL to read ({error})") from None


async def upload(path: Path, url: str) -> None:
    """PUT a file to a URL.

    Raises:
        InvalidConfigError: it is not taken; the file stays.
    """
    try:
        with path.open("rb") as file:
            async with aiohttp.ClientSession(raise_for_status=True) as session, session.put(url, data=file):
                pass
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise InvalidConfigError(
            f"--output-file is {url!r}; allowed: a URL that takes PUT ({error}); the answers are in {path}, "
            "and the same command sends them again"
        ) from None
