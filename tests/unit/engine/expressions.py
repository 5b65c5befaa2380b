"""Expressions in Python's dialect for Hypothesis, and what a compiled form makes of texts."""

from __future__ import annotations

import random
import re
import warnings
from typing import Final

from hypothesis import strategies as st

from baton_engine.structured.interface import EndTokens, Grammar
from baton_engine.structured.selection import Backends
from tests.unit.engine.grammars import Model, allowed_ids

MODEL: Final = Model()
VOCABULARY: Final = MODEL.vocabulary()
_MAX_STEPS: Final = 40
_NUM_FREE_STEPS: Final = 5

LITERALS: Final = st.sampled_from((*"abzAZ09_ -/\"'~&<>,:=!@#%`;]}é€😀\n\t", "\x7f", "\u2028", "\xa0"))
ESCAPES: Final = st.sampled_from(
    (
        *(r"\^", r"\$", r"\.", r"\*", r"\+", r"\?", r"\(", r"\)", r"\[", r"\]", r"\{", r"\}", r"\|", r"\\"),
        *(r"\-", r"\/", r"\"", r"\n", r"\r", r"\t", r"\f", r"\v", r"\a", r"\x41", r"\u00e9", r"\U0001F600"),
        *(r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"\&", r"\~", r"\ ", r"\<", r"\é"),
    )
)
_SET_ITEMS: Final = st.one_of(
    LITERALS.filter(lambda character: character not in "]-&~"),
    ESCAPES,
    st.sampled_from(
        ("a-f", "0-9", r"\--0", "+-/", r"\x00-\x1f", r"!-\]", "^", "$", ".", "(", "{", "*", "A-z", "é-😀")
    ),
)
SETS: Final = st.builds(
    lambda sign, first, items, last: f"[{sign}{first}{''.join(items)}{last}]",
    st.sampled_from(("", "^")),
    st.sampled_from(("", "]", "-")),
    st.lists(_SET_ITEMS, min_size=1, max_size=4),
    st.sampled_from(("", "-")),
)
_COUNTS: Final = st.sampled_from(("*", "+", "?", "*?", "+?", "??", "{2}", "{0,2}", "{1,}", "{0}", "{1,3}?"))
EXPRESSIONS: Final = st.recursive(
    st.one_of(LITERALS, ESCAPES, SETS, st.sampled_from((".", r"\b", "{", ""))),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map("|".join),
        st.builds("({}{})".format, st.sampled_from(("", "?:", "?P<name>", "?i:", "?s:", "?s-i:")), inner),
        st.builds("(?:{}){}".format, inner, _COUNTS),
        st.builds("{}{}".format, inner, _COUNTS),
        st.sampled_from(("^", "$", r"\A", r"\Z")),
    ),
    max_leaves=7,
)


def judge(pattern: str, flags: str = "") -> re.Pattern[str] | None:
    """Compile an expression by Python's `re`; None where it refuses it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return re.compile(flags + pattern, re.ASCII)
        except re.error:
            return None


def backends(name: str) -> Backends:
    return Backends(VOCABULARY, EndTokens.of(MODEL.eos_token_ids, MODEL.vocab_size), name)


def random_output(grammar: Grammar, rng: random.Random) -> bytes | None:
    """Draw allowed tokens until the form may end; None where that takes long."""
    state, written = grammar.new_state(), b""
    for step in range(_MAX_STEPS):
        choices = allowed_ids(state, MODEL.vocab_size)
        if set(choices) & set(MODEL.eos_token_ids) and (step >= _NUM_FREE_STEPS or rng.random() < 0.3):
            return written
        others = [token_id for token_id in choices if token_id not in MODEL.eos_token_ids]
        if not others:
            return written if choices else None
        if step >= _NUM_FREE_STEPS:
            shortest = min(len(VOCABULARY.texts[token_id]) for token_id in others)
            others = [each for each in others if len(VOCABULARY.texts[each]) == shortest]
        token_id = rng.choice(others)
        assert state.accept(token_id)
        written += VOCABULARY.texts[token_id]
    return None


def accepts(grammar: Grammar, text: str) -> bool:
    """Say whether a text is of a form: byte by byte, each of which is a token, and then an end token."""
    state = grammar.new_state()
    token_ids = [_OF_BYTE[byte] for byte in text.encode()]
    return all(map(state.accept, (*token_ids, MODEL.eos_token_ids[0])))


_OF_BYTE: Final = {
    text[0]: token_id for token_id, text in reversed(list(enumerate(VOCABULARY.texts))) if len(text) == 1
}
