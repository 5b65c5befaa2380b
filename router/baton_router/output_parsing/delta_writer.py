"""Collects the parts of a message while a tool parser reads it, and owns the text that is held back.

Two kinds of text are held back. Syntax of a call that has not begun is *kept*: it disappears when the call
begins, and becomes content when there is none. *Blank* text beside calls (before the first, between two,
after the last) belongs to the format: it is content only if other content follows it.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from typing import Final

from baton_router.output_parsing.output_parser import OutputDelta, TextDelta, ToolCallDelta
from baton_router.text.characters import without_half_pairs

ChooseId = Callable[[], str]

_ALPHANUMERIC: Final = string.ascii_letters + string.digits


def random_call_id() -> str:
    return f"chatcmpl-tool-{secrets.token_hex(16)}"


def random_mistral_call_id() -> str:
    """Nine letters and digits: Mistral's chat templates refuse every other id."""
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))


class DeltaWriter:
    def __init__(self, choose_id: ChooseId) -> None:
        self._choose_id = choose_id
        self._deltas: list[OutputDelta] = []
        self._num_calls = 0
        self._kept: list[str] = []
        self._blank: list[str] = []
        self._is_blank = True

    @property
    def has_calls(self) -> bool:
        return self._num_calls > 0

    def text(self, text: str) -> None:
        """Add content."""
        if not text:
            return
        if self._is_blank:
            self._blank.append(text)
            if text.isspace():
                return
            text = "".join(self._blank)
            self._blank.clear()
            self._is_blank = False
        self._deltas.append(TextDelta(text=text))

    def keep(self, text: str) -> None:
        """Hold back what may be the syntax of a call."""
        self._kept.append(text)

    def emit_kept(self) -> None:
        """Emit the kept text as content."""
        if self._kept:
            text = "".join(self._kept)
            self._kept.clear()
            self.text(text)

    def discard_kept(self) -> None:
        """Discard the kept text: it is the syntax of a call."""
        self._kept.clear()

    def start_call(self, name: str) -> None:
        """Begin the next call; what was kept is its syntax."""
        self._kept.clear()
        self._blank.clear()
        self._is_blank = True
        name = without_half_pairs(name)
        self._deltas.append(ToolCallDelta(index=self._num_calls, call_id=self._choose_id(), name=name))
        self._num_calls += 1

    def arguments(self, text: str) -> None:
        """Add to the JSON text of the last call's arguments."""
        if text:
            text = without_half_pairs(text)
            self._deltas.append(ToolCallDelta(index=self._num_calls - 1, arguments=text))

    def end(self) -> None:
        """No more text comes."""
        self.emit_kept()
        if self._blank and not self._num_calls:
            self._deltas.append(TextDelta(text="".join(self._blank)))
        self._blank.clear()

    def take(self) -> list[OutputDelta]:
        """Return what was added since the last call."""
        deltas, self._deltas = self._deltas, []
        return deltas
