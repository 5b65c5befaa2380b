"""Collects the parts of an answer while a tool parser reads it, and owns what is held back.

Two kinds of text are held back. Syntax of a call that has not begun is *kept*: it disappears when the call
begins, and is given back as content when there is none. *Blank* text beside calls (before the first, between
two, after the last) is what the format puts there: it is content only if other content follows it.
"""

from __future__ import annotations

from baton_router.answers.answer import AnswerDelta, TextDelta, ToolCallDelta
from baton_router.answers.call_ids import ChooseId


class DeltaWriter:
    def __init__(self, choose_id: ChooseId) -> None:
        self._choose_id = choose_id
        self._deltas: list[AnswerDelta] = []
        self._num_calls = 0
        self._kept: list[str] = []
        self._blank: list[str] = []
        self._is_blank = True

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

    def give_back(self) -> None:
        """What was kept is content."""
        if self._kept:
            text = "".join(self._kept)
            self._kept.clear()
            self.text(text)

    def drop_kept(self) -> None:
        """What was kept is the syntax of a call."""
        self._kept.clear()

    def start_call(self, name: str) -> None:
        """Begin the next call; what was kept is its syntax."""
        self._kept.clear()
        self._blank.clear()
        self._is_blank = True
        self._deltas.append(ToolCallDelta(index=self._num_calls, call_id=self._choose_id(), name=name))
        self._num_calls += 1

    def arguments(self, text: str) -> None:
        """Add to the JSON text of the last call's arguments."""
        if text:
            self._deltas.append(ToolCallDelta(index=self._num_calls - 1, arguments=text))

    def end(self) -> None:
        """No more text comes."""
        self.give_back()
        if self._blank and not self._num_calls:
            self._deltas.append(TextDelta(text="".join(self._blank)))
        self._blank.clear()

    def take(self) -> list[AnswerDelta]:
        """Return what was added since the last call."""
        deltas, self._deltas = self._deltas, []
        return deltas
