"""Follows the end of one stream, also across restarts of a Redis that forgot it."""

from __future__ import annotations

from typing import Final

from baton_service.redis.link import RedisLink

Fields = dict[bytes, bytes]
_BLOCK_MS: Final = 500
"""Shorter than the deadline of a command."""
_MAX_ENTRIES: Final = 512
"""Maximum number of entries of one read."""
_BEGINNING: Final = "0-0"


class StreamTail:
    """A reader of the stream `key`, from the end at its first call."""

    def __init__(self, link: RedisLink, key: str) -> None:
        self._link = link
        self._key = key
        self._position = ""
        self.is_at_end = False
        """True if the last read reached the end of the stream."""

    async def begin(self) -> Fields | None:
        """Go to the end of the stream, the first time; returns its last entry, if it has one."""
        entry_id, fields = await self._last()
        self._position = entry_id
        return fields

    @property
    def has_begun(self) -> bool:
        return bool(self._position)

    async def read(self, *, waits: bool = True) -> list[Fields]:
        """Return the entries that there are, in order; without any wait for some, up to half a second.

        A stream that has begun anew, with ids before those that were read, is read from its beginning.
        """
        block = ("BLOCK", _BLOCK_MS) if waits else ()
        streams = await self._link.command(
            "XREAD", "COUNT", _MAX_ENTRIES, *block, "STREAMS", self._key, self._position
        )
        self.is_at_end = not streams or len(streams[0][1]) < _MAX_ENTRIES
        if not streams:
            last, _ = await self._last()
            if _order(last) < _order(self._position):
                self._position = _BEGINNING
            return []
        ((_, entries),) = streams
        self._position = entries[-1][0].decode()
        return [fields for _, fields in entries]

    async def _last(self) -> tuple[str, Fields | None]:
        found = await self._link.command("XREVRANGE", self._key, "+", "-", "COUNT", 1)
        return (found[0][0].decode(), found[0][1]) if found else (_BEGINNING, None)


def _order(entry_id: str) -> tuple[int, int]:
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number)
