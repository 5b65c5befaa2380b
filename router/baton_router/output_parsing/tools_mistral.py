"""Calls as Mistral's models write them, after `[TOOL_CALLS]`.

Older tokenizers: a list, `[TOOL_CALLS] [{"name": "f", "arguments": {...}}, ...]`. Since version 11 of the
tokenizer, for each call: `[TOOL_CALLS]f[ARGS]{...}`, some with `[CALL_ID]` and an id after the name.

Source: mistral-common, the instruct tokenizers v3 to v13.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from baton_router.output_parsing.delta_writer import ChooseId, random_mistral_call_id
from baton_router.output_parsing.json_call import JsonCallList
from baton_router.output_parsing.json_scanner import JsonScanner
from baton_router.output_parsing.output_parser import Tool
from baton_router.output_parsing.tool_parser import Markers, ToolParser

_START: Final = Markers("[TOOL_CALLS]")
_WORD: Final = re.compile(r"[\w.\-/:]+")
_AFTER_NAME: Final = Markers("[ARGS]", "[CALL_ID]")


class MistralToolParser(ToolParser):
    def __init__(self, tools: Sequence[Tool] = (), *, choose_id: ChooseId = random_mistral_call_id) -> None:
        super().__init__(tools, choose_id=choose_id)

    def _start(self, text: str, at: int) -> int:
        return self._text_until(text, at, _START, {"[TOOL_CALLS]": self._begin_calls})

    def _begin_calls(self) -> None:
        self._state = self._before_calls

    def _before_calls(self, text: str, at: int) -> int:
        if text[at].isspace():
            self._out.keep(text[at])
            return at + 1
        self._calls = JsonCallList(self._out)
        self._name: list[str] = []
        self._state = self._in_list if text[at] == "[" else self._in_name
        return at

    def _in_list(self, text: str, at: int) -> int:
        return self._read(self._calls, text, at, then=self._start, otherwise=self._start)

    def _in_name(self, text: str, at: int) -> int:
        word = _WORD.match(text, at)
        if word:
            self._name.append(word.group())
            self._out.keep(word.group())
            return word.end()
        if not self._name:
            return self._give_up(at, self._start)
        self._state = self._before_arguments
        return at

    def _before_arguments(self, text: str, at: int) -> int:
        if text[at] == "{":
            self._out.start_call("".join(self._name))
            self._scanner = JsonScanner()
            self._state = self._in_arguments
            return at
        actions = {"[ARGS]": self._end_name, "[CALL_ID]": self._begin_id}
        return self._expect(text, at, _AFTER_NAME, actions, otherwise=self._start)

    def _end_name(self) -> None:
        self._state = self._before_arguments

    def _begin_id(self) -> None:
        self._state = self._in_id

    def _in_id(self, text: str, at: int) -> int:
        word = _WORD.match(text, at)
        if word:
            self._out.keep(word.group())
            return word.end()
        self._state = self._before_arguments
        return at

    def _in_arguments(self, text: str, at: int) -> int:
        return self._read_arguments(self._scanner, text, at, then=self._start)
