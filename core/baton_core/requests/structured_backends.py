"""Chooses the library that compiles a grammar, once, where a request is accepted.

So a request that migrates is compiled by the same library at each worker, whatever their own settings.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from baton_core.errors import require
from baton_core.requests.closed_schemas import strict_schema, strict_tag
from baton_core.requests.expression_tree import has_nested_repetition
from baton_core.requests.grammar_limits import is_lark
from baton_core.requests.regex_syntax import parse_regex
from baton_core.requests.schema_features import unsupported_part
from baton_core.requests.structured_outputs import LIBRARIES, StructuredOutputsParams

AUTO: Final = "auto"
BACKENDS: Final = (AUTO, *LIBRARIES)


def check_backend(name: str) -> None:
    """Refuse a setting that is not in `BACKENDS`.

    Raises:
        InvalidConfigError: naming the setting.
    """
    require("structured_outputs_backend", name, name in BACKENDS, ", ".join(BACKENDS))


def with_backend(params: StructuredOutputsParams, setting: str) -> StructuredOutputsParams:
    """Return the grammar with the library that compiles it.

    A grammar has that of its notation: xgrammar for EBNF, llguidance for Lark's. Otherwise `auto` stands for
    xgrammar where it enforces all of the grammar and matches it fast, else for llguidance, whose schemas are
    closed then where xgrammar's are.

    Args:
        params: within the bounds that `check_grammar_limits` checks.
    """
    if params.grammar is not None:
        return replace(params, backend="guidance" if is_lark(params.grammar) else "xgrammar")
    if setting != AUTO:
        return replace(params, backend=setting)
    # xgrammar follows every way in which nested repetitions can match, and the ways of a step multiply.
    is_slow = params.regex is not None and has_nested_repetition(parse_regex(params.regex))
    if not is_slow and unsupported_part(params) is None:
        return replace(params, backend="xgrammar")
    return replace(
        params,
        backend="guidance",
        json=_rewritten(params.json, strict_schema),
        structural_tag=_rewritten(params.structural_tag, strict_tag),
    )


def _rewritten(text: str | None, rewrite: Callable[[Any], Any]) -> str | None:
    """Return JSON text with its value rewritten; the same text where that changes nothing."""
    if text is None:
        return None
    value = json.loads(text)
    rewritten = rewrite(value)
    return text if rewritten == value else json.dumps(rewritten, separators=(",", ":"))
