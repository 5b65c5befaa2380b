"""Base of the tool parsers: a machine whose state is the method that reads the next characters."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from baton_router.output_parsing.delta_writer import ChooseId, DeltaWriter, random_call_id
from baton_router.output_parsing.json_scanner import JsonScanner
from baton_router.output_parsing.output_parser import OutputDelta, OutputParser, Tool

State = Callable[[str, int], int]
"""Takes characters of a text from an index on; returns the index of the first one that it did not take.

It takes at least one, or holds back the rest, or makes another state the next one.
"""
Actions = Mapping[str, Callable[[], None]]
"""The action of each marker, which sets the next state."""


class CallReader(Protocol):
    """Reads calls in the machine's stead until it `is_done` or `is_broken`."""

    is_done: bool
    is_broken: bool

    def feed(self, text: str, at: int) -> int: ...


class Markers:
    """Strings that mean something to a parser, found in text that arrives in pieces."""

    def __init__(self, *markers: str) -> None:
        """The first-named of two markers that begin at the same character is found."""
        whole = "|".join(map(re.escape, markers))
        cut_off = "|".join(map(_beginning, markers))
        self._pattern = re.compile(rf"(?P<marker>{whole})|(?:{cut_off})\Z")

    def find(self, text: str, at: int) -> tuple[int, str | None]:
        """Return the index of the first marker from `at` on, and the marker.

        None for one that the end of the text may have cut off. The text's length if there is neither.
        """
        found = self._pattern.search(text, at)
        return (found.start(), found["marker"]) if found else (len(text), None)

    def match(self, text: str, at: int) -> tuple[bool, str | None]:
        """Return whether a marker begins at `at`, and the marker: None if the text may cut it off."""
        found = self._pattern.match(text, at)
        return (True, found["marker"]) if found else (False, None)


def _beginning(marker: str) -> str:
    """A pattern for every proper beginning of `marker`."""
    pattern = ""
    for character in reversed(marker[:-1]):
        pattern = re.escape(character) + (f"(?:{pattern})?" if pattern else "")
    return pattern or r"(?!)"


class ToolParser(OutputParser):
    """A machine that begins with `_start`.

    It holds back what may be the beginning of a marker, white space beside calls, and the syntax of the one
    call that it is reading until that is certain to be one.
    """

    def __init__(self, tools: Sequence[Tool] = (), *, choose_id: ChooseId = random_call_id) -> None:
        """`tools`: what the request offers; `choose_id`: makes the id of each call."""
        self._tools = {tool.name: tool for tool in tools}
        self._out = DeltaWriter(choose_id)
        self._state: State = self._start
        self._held = ""
        self._is_held_content = False

    def push(self, text: str) -> list[OutputDelta]:
        text, self._held, self._is_held_content = self._held + text, "", False
        at = 0
        while at < len(text):
            at = self._state(text, at)
        return self._out.take()

    def flush(self) -> list[OutputDelta]:
        if self._out.has_calls:
            self._out.discard_kept()
        self._out.emit_kept()
        if self._is_held_content or not self._out.has_calls:
            self._out.text(self._held)
        self._held = ""
        self._out.end()
        return self._out.take()

    @abstractmethod
    def _start(self, text: str, at: int) -> int:
        """The state in which an answer begins."""

    def _hold(self, text: str, at: int) -> int:
        """Hold back the rest: what it is depends on what follows."""
        self._held = text[at:]
        return len(text)

    def _plain(self, text: str, at: int) -> int:
        """The state in which all that follows is content."""
        self._out.text(text[at:])
        return len(text)

    def _text_until(self, text: str, at: int, markers: Markers, actions: Actions) -> int:
        """Content up to a marker, which is kept and calls its action."""
        end, marker = markers.find(text, at)
        self._out.text(text[at:end])
        if marker:
            return self._take_marker(marker, end, actions)
        self._is_held_content = True
        return self._hold(text, end) if end < len(text) else end

    def _expect(self, text: str, at: int, markers: Markers, actions: Actions, otherwise: State) -> int:
        """Keep white space, then a marker, which calls its action. On anything else all kept is content."""
        if text[at].isspace():
            self._out.keep(text[at])
            return at + 1
        begins, marker = markers.match(text, at)
        if marker:
            return self._take_marker(marker, at, actions)
        if begins:
            return self._hold(text, at)
        return self._give_up(at, otherwise)

    def _give_up(self, at: int, otherwise: State) -> int:
        """Make content of what is kept, and go on in another state."""
        self._out.emit_kept()
        self._state = otherwise
        return at

    def _take_marker(self, marker: str, at: int, actions: Actions) -> int:
        self._out.keep(marker)
        actions[marker]()
        return at + len(marker)

    def _read(self, reader: CallReader, text: str, at: int, then: State, otherwise: State) -> int:
        """Let `reader` take calls. Where it breaks, all kept is content."""
        end = reader.feed(text, at)
        if reader.is_broken:
            self._out.emit_kept()
            self._state = otherwise
        elif reader.is_done:
            self._out.discard_kept()
            self._state = then
        return end

    def _read_arguments(self, scanner: JsonScanner, text: str, at: int, then: State) -> int:
        """Let `scanner` take the arguments of the call that has begun. Where they break, they end."""
        end, taken = scanner.read(text, at)
        self._out.arguments(taken)
        if scanner.is_done or scanner.is_broken:
            self._state = then
        return end
