"""The parts of a reply in Anthropic's Messages API that is not streamed."""

from __future__ import annotations

import msgspec
import pytest

from baton_router.http.chat.tool_choice import ToolUse
from baton_router.http.messages.parts import PartWriter
from baton_router.http.messages.replies import ToolUsePart
from baton_router.output_parsing.output_parser import OutputDelta, PlainParser, ToolCallDelta
from baton_router.requests.generation import Delta


class OneCall(PlainParser):
    """Reads one call with these arguments, whatever comes."""

    def __init__(self, arguments: str) -> None:
        self._arguments = arguments

    def push(self, text: str) -> list[OutputDelta]:
        return [ToolCallDelta(index=0, call_id="t", name="f", arguments=self._arguments)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": "\\ud83d\\ude00 \\ud83d"}', {"a": "😀 \ufffd"}),
        ('{"\\uDE00": [1]}', {"\ufffd": [1]}),
        ('{"a": "\\\\ud83d"}', {"a": "\\ud83d"}),
        ('{"a": ' + "[" * 10_000, {}),
        ('{"a": 1', {}),
        ("", {}),
    ],
)
def test_the_input_of_a_call_is_an_object_that_json_can_hold(
    arguments: str, expected: dict[str, object]
) -> None:
    writer = PartWriter(OneCall(arguments), ToolUse())
    list(writer.piece(Delta(index=0, text="", token_ids=(), finish_reason="stop")))
    (part,) = writer.parts
    assert isinstance(part, ToolUsePart)
    assert part.input == expected
    assert msgspec.json.encode(part)
