"""The parsers of answers that the operator names, looked up once, at start."""

from __future__ import annotations

from dataclasses import replace

from baton_core.errors import InvalidConfigError
from baton_router.answers.registry import find_reasoning_parser, load_plugin, tool_parser_names
from baton_router.http.http_settings import HttpSettings
from baton_router.http.reasoning_use import markers_of
from baton_router.request_limits import RequestLimits


def read_parsers(settings: HttpSettings, limits: RequestLimits) -> RequestLimits:
    """Load the plug-in and check the names; returns `limits` with the markers of the reasoning parser.

    Raises:
        InvalidConfigError: no parser has a name, or the plug-in fails.
    """
    if settings.tool_parser_plugin:
        load_plugin(settings.tool_parser_plugin)
    if settings.tool_call_parser and settings.tool_call_parser not in tool_parser_names():
        allowed = ", ".join(tool_parser_names())
        raise InvalidConfigError(f"--tool-call-parser is {settings.tool_call_parser!r}; allowed: {allowed}")
    if not settings.reasoning_parser:
        return limits
    return replace(limits, reasoning=markers_of(find_reasoning_parser(settings.reasoning_parser)))
