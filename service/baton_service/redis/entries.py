"""Reads entries of Redis one by one: what cannot be read costs the others nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import msgspec

from baton_core.msgpack import decoder_of
from baton_service.redis.link import RedisLink
from baton_service.redis.scripts import READ_ROUTERS

T = TypeVar("T")
_read_map: Final[Callable[[bytes], dict[str, Any]]] = decoder_of(dict[str, Any])


def read_entries(
    link: RedisLink, key: str, entries: Iterable[tuple[bytes, bytes]], read: Callable[[bytes], T]
) -> tuple[list[T], list[bytes]]:
    """Return what the values of named entries are, and the names of those that no version has written.

    The records of every version are maps: one that lacks something is left out, and is not among the names.
    """
    values: list[T] = []
    junk: list[bytes] = []
    for name, encoded in entries:
        try:
            values.append(read(encoded))
        except msgspec.DecodeError as error:
            link.note_unreadable(f"{name!r} in {key}: {error}")
            if not _is_map(encoded):
                junk.append(name)
    return values, junk


class RouterRegistry:
    """Reads what the living routers have written."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._read = link.script(READ_ROUTERS)

    async def read(self, field: str, read: Callable[[bytes], T]) -> list[T]:
        """Return a field of every router; one whose field is junk is forgotten until it renews its lease."""
        keys = self._link.keys
        found = await self._read((keys.routers,), (keys.router_prefix, field))
        values, junk = read_entries(self._link, keys.routers, zip(found[::2], found[1::2], strict=True), read)
        if junk:
            await self._link.command("SREM", keys.routers, *junk)
        return values


def _is_map(encoded: bytes) -> bool:
    try:
        _read_map(encoded)
    except msgspec.DecodeError:
        return False
    return True
