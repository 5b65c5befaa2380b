"""Calls as Hermes and the Qwen chat models write them.

`<tool_call>{"name": "f", "arguments": {...}}</tool_call>`, several one after the other, content around them.
A missing end tag or last `}` is forgiven, and so are arguments that are missing, null, or JSON within a
string.

Source: the chat templates of NousResearch/Hermes-2-Pro-Llama-3-8B and Qwen/Qwen3-8B.
"""

from __future__ import annotations

from typing import Final

from baton_router.output_parsing.json_call import JsonCall
from baton_router.output_parsing.tool_parser import Markers, ToolParser

_START: Final = Markers("<tool_call>")
_END: Final = Markers("</tool_call>")


class HermesToolParser(ToolParser):
    def _start(self, text: str, at: int) -> int:
        return self._text_until(text, at, _START, {"<tool_call>": self._begin_call})

    def _begin_call(self) -> None:
        self._call = JsonCall(self._out, is_marked=True)
        self._state = self._in_call

    def _in_call(self, text: str, at: int) -> int:
        end = self._read(self._call, text, at, then=self._after_call, otherwise=self._start)
        if self._call.is_broken and self._call.has_begun:
            self._state = self._after_call
        return end

    def _after_call(self, text: str, at: int) -> int:
        return self._expect(text, at, _END, {"</tool_call>": self._end_call}, otherwise=self._start)

    def _end_call(self) -> None:
        self._out.discard_kept()
        self._state = self._start
