"""The parts of a reply in Anthropic's Messages API that is not streamed."""

from __future__ import annotations

import msgspec
import pytest

from baton_router.http.messages.parts import collect_parts
from baton_router.http.messages.replies import BlockDelta, BlockStart, BlockStop, PartJsonDelta, ToolUsePart


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
    events = (
        BlockStart(index=0, content_block=ToolUsePart(id="t", name="f", input={})),
        BlockDelta(index=0, delta=PartJsonDelta(partial_json=arguments)),
        BlockStop(index=0),
    )
    (part,) = collect_parts(events)
    assert isinstance(part, ToolUsePart)
    assert part.input == expected
    assert msgspec.json.encode(part)
