"""Calls that models write as a list in Python: `[f(a=1, b="x"), g()]`, at the beginning of the answer.

Llama 3.2 and ToolACE do. A call goes out, its arguments as JSON, once its last parenthesis is there; until
then it is held back. Everything else, and all that follows the list, is content.

Source: Meta, "Llama 3.2 text prompt format", zero-shot function calling.
"""

from __future__ import annotations

import json
import re
from typing import Final

from baton_router.output_parsing.python_literals import read_call
from baton_router.output_parsing.tool_parser import Markers, ToolParser

_LIST: Final = Markers("[")
_AFTER_CALL: Final = Markers(",", "]")
_NAME: Final = re.compile(r"[\w.]+")
_CODE: Final = re.compile(r"[^()\[\]{}'\"]+")
_QUOTES: Final = Markers('"""', "'''", '"', "'")
_STRING_ENDS: Final = {quote: Markers(quote, "\\") for quote in ('"""', "'''", '"', "'")}


class PythonicToolParser(ToolParser):
    def _start(self, text: str, at: int) -> int:
        return self._expect(text, at, _LIST, {"[": self._begin_call}, otherwise=self._plain)

    def _begin_call(self) -> None:
        self._call: list[str] = []
        self._depth = 0
        self._state = self._before_name

    def _before_name(self, text: str, at: int) -> int:
        if text[at].isspace():
            self._out.keep(text[at])
            return at + 1
        self._state = self._in_name
        return at

    def _in_name(self, text: str, at: int) -> int:
        name = _NAME.match(text, at)
        if name:
            return self._take(text, at, name.end())
        if text[at] != "(" or not self._call:
            return self._give_up(at, self._plain)
        self._state = self._in_code
        return at

    def _in_code(self, text: str, at: int) -> int:
        code = _CODE.match(text, at)
        if code:
            return self._take(text, at, code.end())
        if text[at] in "'\"":
            return self._open_string(text, at)
        self._depth += 1 if text[at] in "([{" else -1
        end = self._take(text, at, at + 1)
        if not self._depth:
            self._end_call()
        return end

    def _open_string(self, text: str, at: int) -> int:
        rest = text[at : at + 3]
        if len(rest) < 3 and rest == rest[0] * len(rest):
            return self._hold(text, at)
        _, quote = _QUOTES.match(text, at)
        assert quote is not None
        self._string_end = _STRING_ENDS[quote]
        self._state = self._in_string
        return self._take(text, at, at + len(quote))

    def _in_string(self, text: str, at: int) -> int:
        end, marker = self._string_end.find(text, at)
        if not marker:
            return self._hold(text, self._take(text, at, end))
        self._state = self._after_backslash if marker == "\\" else self._in_code
        return self._take(text, at, end + len(marker))

    def _after_backslash(self, text: str, at: int) -> int:
        self._state = self._in_string
        return self._take(text, at, at + 1)

    def _end_call(self) -> None:
        try:
            name, arguments = read_call("".join(self._call))
            text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        except (ValueError, RecursionError):
            self._out.emit_kept()
            self._state = self._plain
            return
        self._out.start_call(name)
        self._out.arguments(text)
        self._state = self._after_call

    def _after_call(self, text: str, at: int) -> int:
        actions = {",": self._begin_call, "]": self._end_list}
        return self._expect(text, at, _AFTER_CALL, actions, otherwise=self._plain)

    def _end_list(self) -> None:
        self._out.discard_kept()
        self._state = self._plain

    def _take(self, text: str, at: int, end: int) -> int:
        self._out.keep(text[at:end])
        self._call.append(text[at:end])
        return end
