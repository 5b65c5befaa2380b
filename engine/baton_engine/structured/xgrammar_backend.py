"""Grammars compiled by xgrammar.

Imported when the first grammar is compiled: the library takes a second to load.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
import xgrammar

from baton_core.requests.expression_writers import gbnf
from baton_core.requests.regex_syntax import parse_regex
from baton_core.requests.schema_features import unsupported_part
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_engine.structured.interface import Backend, EndTokens, Grammar, GrammarState, TokenMask, refusal
from baton_engine.structured.vocabulary import Vocabulary

_THREADS_PER_GRAMMAR: Final = 4
_COMPACT: Final = (",", ":")


class XgrammarBackend(Backend):
    """Compiles every kind of grammar; refuses schemas that xgrammar would follow only in part."""

    def __init__(self, vocabulary: Vocabulary, end: EndTokens) -> None:
        self._vocabulary = vocabulary
        self._end = end

    def compile(self, params: StructuredOutputsParams) -> XgrammarGrammar:
        """See `Backend`."""
        if (keyword := unsupported_part(params)) is not None:
            raise refusal(params, f"what xgrammar keeps to, which {keyword} is not")
        try:
            compiled = self._compile(params)
        except (RuntimeError, ValueError, TypeError, KeyError) as error:
            raise refusal(params, f"what xgrammar can compile ({_reason(error)})") from None
        return XgrammarGrammar(compiled, self._end, len(self._vocabulary.texts))

    def _compile(self, params: StructuredOutputsParams) -> xgrammar.CompiledGrammar:
        match params.kind:
            case "json":
                return self._compile_schema(params.json or "", params)
            case "json_object":
                return self._compile_schema('{"type": "object"}', params)
            case "regex":
                return self._compiler.compile_grammar(_rule(params.regex or ""))
            case "choice":
                choices = " | ".join(map(_literal, params.choice))
                return self._compiler.compile_grammar(f"root ::= {choices}")
            case "grammar":
                return self._compiler.compile_grammar(params.grammar or "")
        tag = params.structural_tag or ""
        return self._compiler_with_marks.compile_structural_tag(_in_current_notation(json.loads(tag)))

    def _compile_schema(self, schema: str, params: StructuredOutputsParams) -> xgrammar.CompiledGrammar:
        if params.disable_any_whitespace:
            return self._compiler.compile_json_schema(schema, any_whitespace=False, separators=_COMPACT)
        return self._compiler.compile_json_schema(schema)

    @cached_property
    def _compiler(self) -> xgrammar.GrammarCompiler:
        return self._make_compiler(self._vocabulary.texts)

    @cached_property
    def _compiler_with_marks(self) -> xgrammar.GrammarCompiler:
        """For structural tags, in which special tokens may be the marks that begin and end a part."""
        return self._make_compiler(self._vocabulary.texts_with_marks(self._end.token_ids))

    def _make_compiler(self, texts: Sequence[bytes]) -> xgrammar.GrammarCompiler:
        info = xgrammar.TokenizerInfo(
            list(texts), xgrammar.VocabType.RAW, stop_token_ids=sorted(self._end.token_ids)
        )
        return xgrammar.GrammarCompiler(info, max_threads=_THREADS_PER_GRAMMAR, cache_enabled=False)


class XgrammarGrammar(Grammar):
    def __init__(self, compiled: xgrammar.CompiledGrammar, end: EndTokens, vocab_size: int) -> None:
        self._compiled = compiled
        self.num_bytes = int(compiled.memory_size_bytes)
        self._end = end
        self._last_word = _mask_of_last_word(vocab_size)

    def new_state(self) -> XgrammarState:
        return XgrammarState(xgrammar.GrammarMatcher(self._compiled), self._end, self._last_word)


class XgrammarState(GrammarState):
    def __init__(self, matcher: xgrammar.GrammarMatcher, end: EndTokens, last_word: np.int32) -> None:
        super().__init__(end)
        self._matcher = matcher
        self._last_word = last_word

    def fork(self) -> Self:
        """See `GrammarState`."""
        forked = super().fork()
        forked._matcher = self._matcher.fork()
        return forked

    def _advance(self, token_id: int) -> bool:
        return bool(self._matcher.accept_token(token_id))

    def _fill(self, row: TokenMask) -> None:
        row.fill(-1)
        self._matcher.fill_next_token_bitmask(row)
        row[-1] &= self._last_word


def _rule(regex: str) -> str:
    """Return a grammar of one rule for an expression."""
    return f"root ::= {gbnf(parse_regex(regex))}"


def _literal(text: str) -> str:
    """Return a literal of xgrammar's notation."""
    return '"' + "".join(f"\\U{ord(character):08X}" for character in text) + '"'


def _in_current_notation(tag: Any) -> str:
    """Return the text of a structural tag; the older notation lists structures, each with a schema."""
    if not isinstance(tag, dict) or "structures" not in tag:
        return json.dumps(_with_rules(tag))
    tags = [
        {
            "type": "tag",
            "begin": structure["begin"],
            "content": {"type": "json_schema", "json_schema": _schema(structure.get("schema", True))},
            "end": structure["end"],
        }
        for structure in tag["structures"]
    ]
    whole = {"type": "triggered_tags", "triggers": tag["triggers"], "tags": tags}
    return json.dumps({"type": "structural_tag", "format": whole})


def _with_rules(part: Any) -> Any:
    """Return a part of a structural tag whose expressions are grammars; schemas stay as they are."""
    if isinstance(part, list):
        return [_with_rules(each) for each in part]
    if not isinstance(part, dict):
        return part
    if part.get("type") == "regex" and isinstance(part.get("pattern"), str):
        return {"type": "grammar", "grammar": _rule(part["pattern"])}
    return {key: value if key == "json_schema" else _with_rules(value) for key, value in part.items()}


def _schema(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _mask_of_last_word(vocab_size: int) -> np.int32:
    """Return the bits of a mask's last word that are tokens: xgrammar leaves the others set."""
    num_bits = (vocab_size - 1) % 32 + 1
    return np.uint32((1 << num_bits) - 1).view(np.int32)


def _reason(error: Exception) -> str:
    """Return the library's message without the time and the place in its source."""
    text = str(error.args[0] if error.args else error)
    lines = [
        line.rsplit(".cc:", 1)[-1].split(": ", 1)[-1].strip() for line in text.splitlines() if line.strip()
    ]
    return "; ".join(lines)[:300]
