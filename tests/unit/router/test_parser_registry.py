"""Names of parsers, plug-ins, and the ids of calls."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from baton_core.errors import InvalidConfigError
from baton_router.http.chat.output_parsers import read_parsers
from baton_router.output_parsing import registry
from baton_router.output_parsing.delta_writer import random_call_id, random_mistral_call_id
from baton_router.output_parsing.output_parser import PlainParser, TextDelta, ToolCallDelta, collect
from baton_router.process.http_settings import HttpSettings
from baton_router.requests.request_limits import ReasoningMarkers, RequestLimits
from tests.unit.router.output_parsers import CALL, content, read


def test_call_ids_have_the_form_that_clients_and_templates_expect() -> None:
    (delta, *_) = registry.make_tool_parser("hermes", ()).push(f"<tool_call>{CALL}")
    assert isinstance(delta, ToolCallDelta)
    for call_id in (delta.call_id, random_call_id()):
        assert call_id is not None
        assert len(bytes.fromhex(call_id.removeprefix("chatcmpl-tool-"))) == 16
    assert random_call_id() != random_call_id()
    (delta, *_) = registry.make_tool_parser("mistral", ()).push("[TOOL_CALLS]f[ARGS]{}")
    assert isinstance(delta, ToolCallDelta)
    for call_id in (delta.call_id, random_mistral_call_id()):
        assert call_id is not None
        assert len(call_id) == 9
        assert call_id.isalnum()
        assert call_id.isascii()


def test_an_unknown_parser_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(InvalidConfigError, match="--tool-call-parser is 'gpt'; allowed: hermes, llama3_json"):
        registry.make_tool_parser("gpt", ())


PLUGIN = """
from dataclasses import dataclass
from baton_router.output_parsing.output_parser import OutputDelta, PlainParser, TextDelta
from baton_router.output_parsing.registry import register_tool_parser

@dataclass
class Loud(PlainParser):
    tools: tuple
    choose_id: object = None

    def push(self, text: str) -> list[OutputDelta]:
        return [TextDelta(text=text.upper())]

register_tool_parser("loud", Loud)
"""


def test_a_plug_in_adds_a_parser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_TOOL_PARSERS", dict(registry._TOOL_PARSERS))
    (tmp_path / "loud.py").write_text(PLUGIN)
    registry.load_plugin(str(tmp_path / "loud.py"))
    assert "loud" in registry.tool_parser_names()
    assert registry.make_tool_parser("loud", ()).push("hello") == [TextDelta(text="HELLO")]
    with pytest.raises(InvalidConfigError, match="'loud'; allowed: any but"):
        registry.register_tool_parser("loud", registry._TOOL_PARSERS["hermes"])


def test_the_documented_plug_in_reads_calls_behind_its_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_TOOL_PARSERS", dict(registry._TOOL_PARSERS))
    page = (Path(__file__).parents[3] / "docs/architecture.md").read_text()
    (plugin,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "brackets.py").write_text(plugin)
    registry.load_plugin(str(tmp_path / "brackets.py"))
    text, named = f"Hi. [call]{CALL}[call] is no call", json.loads(CALL)
    for pieces in ([text], list(text)):
        parser = registry.make_tool_parser("brackets", ())
        parsed = collect([delta for piece in pieces for delta in parser.push(piece)] + parser.flush())
        assert [(call.name, call.arguments) for call in parsed.tool_calls] == [
            (named["name"], json.dumps(named["arguments"]))
        ]
        assert parsed.content == "Hi. [call] is no call"


REASONING_PLUGIN = """
from baton_router.output_parsing.reasoning import Qwen3ReasoningParser
from baton_router.output_parsing.registry import register_reasoning_parser

class Aloud(Qwen3ReasoningParser):
    start_text, end_text = "<aloud>", "</aloud>"

register_reasoning_parser("aloud", Aloud)
"""


def test_a_plug_in_adds_a_reasoning_parser_before_its_name_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_REASONING_PARSERS", dict(registry._REASONING_PARSERS))
    path = tmp_path / "aloud.py"
    path.write_text(REASONING_PLUGIN)
    for both in ("", str(path)):
        settings = HttpSettings(
            reasoning_parser="aloud", reasoning_parser_plugin=str(path), tool_parser_plugin=both
        )
        limits = read_parsers(settings, RequestLimits())
        assert limits.reasoning == ReasoningMarkers(start="<aloud>", end="</aloud>")
    missing = HttpSettings(reasoning_parser_plugin=str(tmp_path / "missing.py"))
    with pytest.raises(InvalidConfigError, match=r"--reasoning-parser-plugin is .*missing\.py"):
        read_parsers(missing, RequestLimits())


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("none.py", None, "FileNotFoundError"),
        ("none.txt", "", r"ImportError: its name does not end in \.py"),
        ("bad.py", "def", "SyntaxError"),
        ("bad.py", "1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_plug_in_that_fails_is_refused(tmp_path: Path, name: str, text: str | None, reason: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InvalidConfigError, match=rf"--tool-parser-plugin is .*{name}.*{reason}"):
        registry.load_plugin(str(tmp_path / name))


def test_a_plain_answer_is_all_content() -> None:
    assert read(PlainParser(), f"<tool_call>{CALL}", 3) == content(f"<tool_call>{CALL}")
