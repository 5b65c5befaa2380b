"""Calls as Llama 3.1 and 3.2 write them in JSON.

`{"name": "f", "parameters": {...}}` at the beginning of the answer, or anywhere after `<|python_tag|>`;
further calls after a semicolon or white space. An answer that is some other JSON is content.

Source: Meta, "Llama 3.1 model card and prompt formats", JSON based tool calling.
"""

from __future__ import annotations

from typing import Final

from baton_router.output_parsing.json_call import JsonCall
from baton_router.output_parsing.tool_parser import Markers, ToolParser

_TAG: Final = Markers("<|python_tag|>")
_SEPARATOR: Final = Markers(";")


class Llama3JsonToolParser(ToolParser):
    def _start(self, text: str, at: int) -> int:
        if text[at] == "{":
            self._begin_call()
            return at
        return self._expect(text, at, _TAG, {"<|python_tag|>": self._begin_call}, otherwise=self._text)

    def _text(self, text: str, at: int) -> int:
        return self._text_until(text, at, _TAG, {"<|python_tag|>": self._begin_call})

    def _begin_call(self) -> None:
        self._call = JsonCall(self._out)
        self._state = self._in_call

    def _in_call(self, text: str, at: int) -> int:
        return self._read(self._call, text, at, then=self._after_call, otherwise=self._text)

    def _after_call(self, text: str, at: int) -> int:
        if text[at] == "{":
            self._begin_call()
            return at
        return self._expect(text, at, _SEPARATOR, {";": self._begin_call}, otherwise=self._text)
