"""The parsers by the names that operators use, and the point where plug-ins add theirs."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final, Protocol, TypeVar

from baton_core.errors import InvalidConfigError
from baton_router.output_parsing.delta_writer import ChooseId
from baton_router.output_parsing.harmony import GptOssReasoningParser, OpenAIToolParser
from baton_router.output_parsing.output_parser import OutputParser, Tool
from baton_router.output_parsing.reasoning import (
    DeepSeekR1ReasoningParser,
    Qwen3ReasoningParser,
    ReasoningParser,
)
from baton_router.output_parsing.tools_hermes import HermesToolParser
from baton_router.output_parsing.tools_llama3 import Llama3JsonToolParser
from baton_router.output_parsing.tools_mistral import MistralToolParser
from baton_router.output_parsing.tools_pythonic import PythonicToolParser
from baton_router.output_parsing.tools_qwen3_coder import Qwen3CoderToolParser

_Parser = TypeVar("_Parser")


class ToolParserFactory(Protocol):
    """Makes the parser of one sequence. Without `choose_id` it names calls as its model expects."""

    def __call__(self, tools: Sequence[Tool], *, choose_id: ChooseId = ...) -> OutputParser: ...


_TOOL_PARSERS: Final[dict[str, ToolParserFactory]] = {
    "hermes": HermesToolParser,
    "llama3_json": Llama3JsonToolParser,
    "mistral": MistralToolParser,
    "openai": OpenAIToolParser,
    "pythonic": PythonicToolParser,
    "qwen3": HermesToolParser,
    "qwen3_coder": Qwen3CoderToolParser,
    "qwen3_xml": Qwen3CoderToolParser,
}
_REASONING_PARSERS: Final[dict[str, type[ReasoningParser]]] = {
    "deepseek_r1": DeepSeekR1ReasoningParser,
    "openai_gptoss": GptOssReasoningParser,
    "qwen3": Qwen3ReasoningParser,
}


def tool_parser_names() -> tuple[str, ...]:
    return tuple(sorted(_TOOL_PARSERS))


def make_tool_parser(name: str, tools: Sequence[Tool], choose_id: ChooseId | None = None) -> OutputParser:
    """Return the parser of one sequence of a request that offers `tools`.

    Raises:
        InvalidConfigError: no parser has this name.
    """
    factory = _find("--tool-call-parser", _TOOL_PARSERS, name)
    return factory(tools) if choose_id is None else factory(tools, choose_id=choose_id)


def find_reasoning_parser(name: str) -> type[ReasoningParser]:
    """Return the class, which knows its markers.

    Raises:
        InvalidConfigError: no parser has this name.
    """
    return _find("--reasoning-parser", _REASONING_PARSERS, name)


def register_tool_parser(name: str, factory: ToolParserFactory) -> None:
    """Add a parser under a new name.

    Raises:
        InvalidConfigError: the name is taken.
    """
    _add("tool parser", _TOOL_PARSERS, name, factory)


def register_reasoning_parser(name: str, parser: type[ReasoningParser]) -> None:
    """Add a parser under a new name.

    Raises:
        InvalidConfigError: the name is taken.
    """
    _add("reasoning parser", _REASONING_PARSERS, name, parser)


def load_plugin(path: str, flag: str = "--tool-parser-plugin") -> None:
    """Run the Python file that the operator names with a flag, once in a process: it registers parsers.

    Raises:
        InvalidConfigError: there is no such file, or it fails.
    """
    try:
        _run_once(path)
    except Exception as error:
        allowed = f"a Python file that registers parsers ({type(error).__name__}: {error})"
        raise InvalidConfigError(f"{flag} is {path!r}; allowed: {allowed}") from error


@cache
def _run_once(path: str) -> None:
    spec = importlib.util.spec_from_file_location(f"baton_parsers_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError("its name does not end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # as in any import: dataclasses look their module up
    spec.loader.exec_module(module)


def _find(flag: str, parsers: Mapping[str, _Parser], name: str) -> _Parser:
    if name not in parsers:
        raise InvalidConfigError(f"{flag} is {name!r}; allowed: {', '.join(sorted(parsers))}")
    return parsers[name]


def _add(kind: str, parsers: dict[str, _Parser], name: str, parser: _Parser) -> None:
    if name in parsers:
        taken = ", ".join(sorted(parsers))
        raise InvalidConfigError(f"name of a {kind} is {name!r}; allowed: any but {taken}")
    parsers[name] = parser
