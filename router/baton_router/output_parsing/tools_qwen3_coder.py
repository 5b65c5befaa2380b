"""Calls as Qwen3-Coder writes them.

`<tool_call><function=f><parameter=key>value</parameter>...</function></tool_call>`, each tag on a line of its
own; a missing `<tool_call>`, `</parameter>`, `</function>` or `</tool_call>` is forgiven. A value is bare
text: the tool's schema says of what type. Strings go out as they come in, other values when they are
complete. Only within a value do the arguments of a call that breaks off stay open.

Source: the chat template of Qwen/Qwen3-Coder-30B-A3B-Instruct.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from baton_router.output_parsing.output_parser import OutputDelta
from baton_router.output_parsing.tool_parser import Markers, ToolParser
from baton_router.output_parsing.typed_values import schema_types, typed_json

_START: Final = Markers("<tool_call>", "<function=")
_FUNCTION: Final = Markers("<function=")
_IN_FUNCTION: Final = Markers("<parameter=", "</function>", "</tool_call>")
_END_OF_PARAMETER: Final = "</parameter>"
_AFTER_VALUE: Final = (_END_OF_PARAMETER, "<parameter=", "</function>", "</tool_call>")
_END_OF_VALUE: Final = Markers(*(line + tag for line in ("\n", "") for tag in _AFTER_VALUE))
_END_OF_CALL: Final = Markers("</tool_call>")
_NAME: Final = re.compile(r"[^<>\n]+")


class Qwen3CoderToolParser(ToolParser):
    _closing = ""
    """Text that closes the arguments of the call that has begun; empty where none is open."""

    def flush(self) -> list[OutputDelta]:
        is_in_value = self._state in (self._before_value, self._in_value)
        if is_in_value and not self._is_string and self._value:
            self._out.arguments(self._key + "".join(self._value))
        elif not (is_in_value and self._is_string):
            self._close_arguments()
        return super().flush()

    def _start(self, text: str, at: int) -> int:
        actions = {"<tool_call>": self._begin_call, "<function=": self._begin_name}
        return self._text_until(text, at, _START, actions)

    def _begin_call(self) -> None:
        self._state = self._before_function

    def _before_function(self, text: str, at: int) -> int:
        return self._expect(text, at, _FUNCTION, {"<function=": self._begin_name}, otherwise=self._start)

    # --- names of functions and parameters ---

    def _begin_name(self) -> None:
        self._name: list[str] = []
        self._state = self._in_function_name

    def _in_function_name(self, text: str, at: int) -> int:
        return self._read_name(text, at, self._begin_function)

    def _begin_function(self, name: str) -> None:
        self._out.start_call(name)
        tool = self._tools.get(name)
        self._schema: dict[str, Any] = dict((tool and tool.parameters) or {})
        self._closing = "{}"
        self._state = self._in_function

    def _in_function(self, text: str, at: int) -> int:
        actions = {
            "<parameter=": self._begin_parameter_name,
            "</function>": self._end_function,
            "</tool_call>": self._end_call,
        }
        return self._expect(text, at, _IN_FUNCTION, actions, otherwise=self._break_off)

    def _break_off(self, text: str, at: int) -> int:
        self._close_arguments()
        return self._give_up(at, self._start)

    def _begin_parameter_name(self) -> None:
        self._name = []
        self._state = self._in_parameter_name

    def _in_parameter_name(self, text: str, at: int) -> int:
        return self._read_name(text, at, self._begin_parameter)

    def _read_name(self, text: str, at: int, then: Callable[[str], None]) -> int:
        word = _NAME.match(text, at)
        if word:
            self._name.append(word.group())
            self._out.keep(word.group())
            return word.end()
        name = "".join(self._name).strip()
        if text[at] != ">" or not name:
            return self._break_off(text, at)
        self._out.keep(">")
        then(name)
        return at + 1

    # --- values ---

    def _begin_parameter(self, key: str) -> None:
        properties = self._schema.get("properties")
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        self._types = schema_types(schema, self._schema)
        self._is_string = self._types <= {"string"}
        self._value: list[str] = []
        opening = "{" if self._closing == "{}" else ", "
        self._key = f"{opening}{json.dumps(key, ensure_ascii=False)}: "
        if self._is_string:
            self._closing = "}"
            self._out.discard_kept()
            self._out.arguments(f'{self._key}"')
        self._state = self._before_value

    def _before_value(self, text: str, at: int) -> int:
        self._state = self._in_value
        if text[at] != "\n":
            return at
        self._out.keep("\n")
        return at + 1

    def _in_value(self, text: str, at: int) -> int:
        end, marker = _END_OF_VALUE.find(text, at)
        if end > at:
            self._add_to_value(text[at:end])
        if not marker:
            return self._hold(text, end)
        self._end_value()
        return end + len(marker) if marker.endswith(_END_OF_PARAMETER) else end

    def _add_to_value(self, piece: str) -> None:
        if self._is_string:
            self._out.discard_kept()
            self._out.arguments(json.dumps(piece, ensure_ascii=False)[1:-1])
        else:
            self._out.keep(piece)
            self._value.append(piece)

    def _end_value(self) -> None:
        self._out.discard_kept()
        if self._is_string:
            self._out.arguments('"')
        else:
            self._closing = "}"
            self._out.arguments(self._key + typed_json("".join(self._value), self._types))
        self._state = self._in_function

    # --- ends ---

    def _end_function(self) -> None:
        self._out.discard_kept()
        self._close_arguments()
        self._state = self._after_function

    def _close_arguments(self) -> None:
        """Close those that are open."""
        self._out.arguments(self._closing)
        self._closing = ""

    def _after_function(self, text: str, at: int) -> int:
        return self._expect(text, at, _END_OF_CALL, {"</tool_call>": self._end_tag}, otherwise=self._start)

    def _end_call(self) -> None:
        self._end_function()
        self._end_tag()

    def _end_tag(self) -> None:
        self._out.discard_kept()
        self._state = self._start
