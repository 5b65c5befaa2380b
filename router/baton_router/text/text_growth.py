"""Bounds the growth of a text by a tokenizer's own rules, checked when the tokenizer is loaded.

Replacements multiply: ten of them that write ten characters for one make a GiB of a character. Nothing bounds
them while they run, so a tokenizer that could is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from tokenizers import Tokenizer

from baton_core.errors import InvalidModelError

MAX_GROWTH: Final = 64.0
"""Unicode's own normalization forms make at most 18 characters of one."""
MAX_ADDED_CHARACTERS: Final = 4096
"""Characters that rules may add before, after or between, whatever the text."""


def check_growth(source: str, tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer whose rules can make a text too long.

    Args:
        source: names the tokenizer's file in errors.

    Raises:
        InvalidModelError: naming the part and what it makes of a character.
    """
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        part = getattr(tokenizer, name)
        if part is None:
            continue
        growth, added = _growth(json.loads(part.__getstate__()))
        if growth > MAX_GROWTH or added > MAX_ADDED_CHARACTERS:
            raise InvalidModelError(
                f"{source}: {name} can make {growth:g} characters of one and add {added:g}; "
                f"allowed: {MAX_GROWTH:g} and {MAX_ADDED_CHARACTERS}"
            )


def _growth(part: Any) -> tuple[float, float]:
    """Characters that one character can become, and those that are added whatever there is."""
    if not isinstance(part, Mapping):
        return 1.0, 0.0
    growth, added = 1.0, 0.0
    for inner in _inner_parts(part):
        inner_growth, inner_added = _growth(inner)
        growth, added = growth * inner_growth, added * inner_growth + inner_added
    content = len(str(part.get("content", "")))
    match part.get("type"):
        case "Replace":
            # An expression may match the place between two characters, and beside it a single one.
            pattern = part.get("pattern")
            literal = pattern.get("String") if isinstance(pattern, Mapping) else None
            growth *= max(1.0, content / len(literal) if literal else 1.0 + 2.0 * content)
            added += content
        case "BPEDecoder" if not part.get("suffix"):
            growth *= math.inf  # a blank at every place between two characters, each time
        case "CTC" if not (part.get("word_delimiter_token") and part.get("pad_token")):
            growth *= math.inf
        case "Prepend":
            added += len(str(part.get("prepend", "")))
    return growth, added


def _inner_parts(part: Mapping[str, Any]) -> list[Any]:
    return [
        inner
        for key in ("normalizers", "pretokenizers", "decoders")
        for inner in part.get(key) or ()
        if isinstance(part.get(key), list)
    ]
