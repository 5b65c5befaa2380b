"""Tools of a chat request, and how the model calls them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from baton_core.errors import InvalidRequestError
from baton_router.http.chat.schemas import AllowedTools, ChatTool, NamedFunction, NamedTool
from baton_router.output_parsing.delta_writer import random_call_id, random_mistral_call_id
from baton_router.output_parsing.output_parser import OutputParser, PlainParser, Tool
from baton_router.output_parsing.registry import make_tool_parser
from baton_router.output_parsing.tools_forced import (
    NamedToolParser,
    RequiredToolsParser,
    named_tool_schema,
    required_tools_schema,
)
from baton_router.structured_outputs.call_places import PLACE_OF_CALL


class Choice(StrEnum):
    """The party that decides whether a tool is called."""

    NONE = "none"
    AUTO = "auto"
    """The model, in the format it was trained on, which a tool parser reads."""
    REQUIRED = "required"
    """The request: structured output forces one or more calls."""
    NAMED = "named"
    """The request: structured output forces the arguments of one call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The tools of a request and their use."""

    choice: Choice = Choice.NONE
    tools: tuple[Tool, ...] = ()
    """The tools that may be called; with a named choice that tool alone."""
    is_parallel: bool = True
    """True if a message may have several calls."""
    parser_name: str = ""
    """The value of `--tool-call-parser`."""

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON schema that replies follow; None where the model decides.

        Raises:
            InvalidRequestError: a tool's schema is nested too deeply.
        """
        match self.choice:
            case Choice.REQUIRED:
                schema = required_tools_schema(self.tools)
                return schema if self.is_parallel else {**schema, "maxItems": 1}
            case Choice.NAMED:
                return named_tool_schema(self.tools[0])
            case _:
                return None

    def make_parser(self) -> OutputParser:
        """Return the parser of one sequence."""
        choose_id = random_mistral_call_id if self.parser_name == "mistral" else random_call_id
        match self.choice:
            case Choice.REQUIRED:
                return RequiredToolsParser(choose_id=choose_id)
            case Choice.NAMED:
                return NamedToolParser(self.tools[0].name, choose_id=choose_id)
            case Choice.AUTO:
                return make_tool_parser(self.parser_name, self.tools)
            case _:
                return PlainParser()

    def finish_reason(self, reason: str, *, has_calls: bool) -> str:
        """Return OpenAI's finish reason: `tool_calls` instead of `stop`, except for a named tool.

        Source: OpenAI's API reference, the chat completion object.
        """
        is_called = has_calls and reason == "stop" and self.choice is not Choice.NAMED
        return "tool_calls" if is_called else reason


def read_tool_use(
    offered: Sequence[ChatTool],
    wanted: str | NamedTool | None,
    *,
    is_parallel: bool,
    parser_name: str,
    is_auto_enabled: bool,
) -> ToolUse:
    """Read a request's tools and `tool_choice`; with tools and no choice the model decides.

    Raises:
        InvalidRequestError: the choice does not go with the tools, or with the operator's flags, or a tool
            whose calls are forced takes no object.
    """
    tools = tuple(Tool(name=tool.function.name, parameters=tool.function.parameters) for tool in offered)
    if wanted is None or (wanted == "auto" and not tools):
        wanted = "auto" if tools else "none"
    if wanted == "none":
        return ToolUse(tools=tools, parser_name=parser_name)
    names = _names(wanted) if isinstance(wanted, NamedTool) else {}
    if not tools:
        shown = wanted if isinstance(wanted, str) else ", ".join(names.values())
        raise InvalidRequestError("tool_choice", shown, "none: the request has no tools")
    chosen = _chosen(tools, names) if names else list(enumerate(tools))
    if isinstance(wanted, NamedTool):
        if wanted.allowed_tools is None:
            _check_types(chosen[:1])
            return ToolUse(choice=Choice.NAMED, tools=(chosen[0][1],), parser_name=parser_name)
        wanted = wanted.allowed_tools.mode
    if wanted == "auto" and not (is_auto_enabled and parser_name):
        allowed = "none, required, or a function by its name: auto needs --enable-auto-tool-choice and "
        raise InvalidRequestError("tool_choice", "auto", f"{allowed}--tool-call-parser to be set")
    if wanted == "required":
        _check_types(chosen)
    tools = tuple(tool for _, tool in chosen)
    return ToolUse(choice=Choice(wanted), tools=tools, is_parallel=is_parallel, parser_name=parser_name)


def forced_names(offered: Sequence[ChatTool], wanted: str | NamedTool | None) -> dict[str, str]:
    """Return the names that the schemas of forced calls have in errors, by those in the structured output."""
    calls, parameters = f"structured_outputs.json.{PLACE_OF_CALL}", "tools[].function.parameters"
    if not isinstance(wanted, NamedTool):
        return {"structured_outputs.json": "tools", calls: parameters}
    if wanted.allowed_tools is None:
        chosen = {wanted.function.name} if wanted.function is not None else set()
    else:
        chosen = {tool.function.name for tool in wanted.allowed_tools.tools}
    indexes = [index for index, tool in enumerate(offered) if tool.function.name in chosen]
    fields = [parameters.replace("[]", f"[{index}]") for index in indexes]
    if wanted.allowed_tools is None:
        return {"structured_outputs.json": fields[0] if fields else "tools"}
    numbered = (calls.replace("[]", f"[{number}]") for number in range(len(fields)))
    return {"structured_outputs.json": "tools", **dict(zip(numbered, fields, strict=True))}


def _names(choice: NamedTool) -> dict[str, str]:
    """Return the names of the functions of a choice, by the fields that have them."""
    match choice:
        case NamedTool(type="function", function=NamedFunction(name=name), allowed_tools=None):
            return {"tool_choice.function.name": name}
        case NamedTool(type="allowed_tools", function=None, allowed_tools=AllowedTools(tools=tools)):
            return {
                f"tool_choice.allowed_tools.tools[{index}].function.name": tool.function.name
                for index, tool in enumerate(tools)
            }
        case _:
            allowed = "function or allowed_tools, with the field of this name alone"
            raise InvalidRequestError("tool_choice.type", choice.type, allowed)


def _chosen(tools: Sequence[Tool], names: Mapping[str, str]) -> list[tuple[int, Tool]]:
    """Return the tools of some names, each after its index; `names` are given by their fields."""
    known = {tool.name for tool in tools}
    for field, name in names.items():
        if name not in known:
            raise InvalidRequestError(field, name, ", ".join(tool.name for tool in tools))
    wanted = set(names.values())
    return [(index, tool) for index, tool in enumerate(tools) if tool.name in wanted]


def _check_types(forced: Iterable[tuple[int, Tool]]) -> None:
    """Refuse tools with forced calls, each given after its index, whose arguments are no object."""
    for index, tool in forced:
        if (kind := (tool.parameters or {}).get("type", "object")) != "object":
            field = f"tools[{index}].function.parameters.type"
            raise InvalidRequestError(field, kind, "object: arguments have names")
