"""Checks structured outputs before a worker gets the request.

llguidance reads schemas, expressions and Lark as the workers do, and needs no torch; it loads with the first
grammar. Problems that only a worker can find (its model's tokens cannot write the grammar, its library lacks
a keyword) end the request there, with the same error.
"""

from __future__ import annotations

from typing import Any

from baton_core.errors import InvalidConfigError, InvalidRequestError
from baton_core.requests.grammar_limits import (
    check_grammar_limits,
    check_regex,
    check_repetitions,
    is_lark,
    read_bounded_json,
)
from baton_core.requests.guidance_source import (
    guidance_source,
    lark_source,
    plain_reason,
    regex_source,
    schema_source,
)
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_router.structured_outputs.call_places import parameters_of_calls
from baton_router.structured_outputs.ebnf import EbnfError, check_ebnf
from baton_router.structured_outputs.structural_tags import check_structural_tag
from baton_sandbox.deep_stack import run_deep


def check_structured_outputs(params: StructuredOutputsParams) -> None:
    """Refuse a structured output that no worker could compile.

    Raises:
        InvalidRequestError: naming the field and what is wrong with it.
        InvalidConfigError: llguidance is not installed.
    """
    check_grammar_limits(params)
    field = f"structured_outputs.{params.kind}"
    match params.kind:
        case "choice" | "json_object":
            return
        case "json":
            _check_json(field, read_bounded_json(field, params.json or ""))
        case "structural_tag":
            tag = read_bounded_json(field, params.structural_tag or "")
            check_structural_tag(field, tag, check_content)
        case "grammar":
            check_grammar(field, params.grammar or "")
        case _:
            _validate(field, getattr(params, params.kind), guidance_source(params))


def check_content(field: str, kind: str, value: Any) -> None:
    """Refuse a constraint within a structural tag: a `json_schema`, a `regex` or a `grammar`.

    Raises:
        InvalidRequestError: naming the field and what is wrong.
    """
    match kind:
        case "json_schema":
            check_schema(field, read_bounded_json(field, value) if isinstance(value, str) else value)
        case "regex":
            check_regex(field, value)
            _validate(field, value, regex_source(value))
        case _:
            check_repetitions(field, value)
            check_grammar(field, value)


def _check_json(field: str, schema: Any) -> None:
    """Check a whole schema; of tools that may be called, name the one that is wrong."""
    try:
        check_schema(field, schema)
    except InvalidRequestError:
        for place, parameters in parameters_of_calls(schema):
            check_schema(f"{field}.{place}", parameters)
        raise


def check_schema(field: str, schema: Any) -> None:
    """Refuse what is no JSON schema, or has keywords that no worker supports.

    Raises:
        InvalidRequestError: naming the field and what is wrong.
    """
    if not isinstance(schema, dict | bool):
        raise InvalidRequestError(field, schema, "a JSON schema: an object, true or false")
    try:
        source = schema_source(schema)
    except ValueError as error:
        raise InvalidRequestError(field, schema, str(error)) from None
    _validate(field, schema, source)


def check_grammar(field: str, grammar: str) -> None:
    """Refuse a grammar that is wrong in the notation it seems to be in.

    Raises:
        InvalidRequestError: naming the field and what is wrong.
    """
    if is_lark(grammar):
        _validate(field, grammar, lark_source(grammar))
        return
    try:
        check_ebnf(grammar)
    except EbnfError as error:
        raise InvalidRequestError(field, grammar, f"a grammar in the notation of GBNF ({error})") from None


def _validate(field: str, value: Any, source: str) -> None:
    # Not imported at the top: a router without such requests does without it.
    try:
        from llguidance import LLMatcher, LLParserLimits
    except ImportError as error:
        raise InvalidConfigError(
            f"structured_outputs needs a missing package ({error}); allowed: it, pip install 'baton[router]'"
        ) from error
    limits = LLParserLimits(verbose_errors=False)
    reason = run_deep(lambda: LLMatcher.validate_grammar(source, None, limits=limits))
    if reason:
        raise InvalidRequestError(field, value, f"what llguidance can read ({plain_reason(reason)})")
