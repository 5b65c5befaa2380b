"""Events of a stream of server-sent events, whatever pieces its bytes come in. Pure.

Source: the event stream format of the HTML standard, without fields other than `data`, and without lines that
end with a lone carriage return.
"""

from __future__ import annotations

from typing import Final

MAX_EVENT_BYTES: Final = 4 * 2**20


class EventParser:
    """Of one stream."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes as they come; return the data of each event that they complete.

        Raises:
            ValueError: an event is longer than 4 MiB.
        """
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MAX_EVENT_BYTES:
            raise ValueError(f"an event is longer than {MAX_EVENT_BYTES} bytes")
        events = []
        for line in lines:
            content = line.removesuffix(b"\r")
            if content.startswith(b"data:"):
                self._data.append(content[5:].removeprefix(b" "))
            elif not content and self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
        return events
