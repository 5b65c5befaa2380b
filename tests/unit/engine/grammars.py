"""Builders of forms' compilers, and walks over the tokens that a form allows."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_engine.structured.compiler import GrammarCompiler
from baton_engine.structured.interface import Grammar, GrammarState, TokenMask
from baton_engine.structured.vocabulary import Vocabulary

BUNDLED: Final = Path(__file__).parents[3] / "api/baton/bundled"
BACKENDS: Final = ("xgrammar", "guidance")
_NUM_FREE_STEPS: Final = 25
_MAX_STEPS: Final = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A tokenizer's folder, and the sizes of the model that it comes with."""

    folder: Path = BUNDLED
    vocab_size: int = 4096
    eos_token_ids: tuple[int, ...] = (0, 2)

    def compiler(self, backend: str = "auto", **settings: Any) -> GrammarCompiler:
        return GrammarCompiler(self.folder, self.vocab_size, self.eos_token_ids, backend=backend, **settings)

    def vocabulary(self) -> Vocabulary:
        return Vocabulary.read(self.folder, self.vocab_size)


def compiled(compiler: GrammarCompiler, **form: Any) -> Grammar:
    """Compile a form as a worker does."""
    params = StructuredOutputsParams(**form)
    compiler.compile(params).result(timeout=60)
    return compiler.get(params)


def mask_of(state: GrammarState, vocab_size: int) -> TokenMask:
    row: TokenMask = np.full((2, (vocab_size + 31) // 32), 0x55555555, dtype=np.int32)[1]
    state.fill_mask(row)
    return row


def allowed_ids(state: GrammarState, vocab_size: int) -> list[int]:
    bits = np.unpackbits(mask_of(state, vocab_size).view(np.uint8), bitorder="little")
    assert not bits[vocab_size:].any(), "a mask allows what is no token"
    return [int(token_id) for token_id in np.flatnonzero(bits)]


def walk(grammar: Grammar, model: Model, texts: tuple[bytes, ...], seed: int) -> list[int]:
    """Draw allowed tokens until an end token; after some steps those that end something."""
    rng, state, drawn = random.Random(seed), grammar.new_state(), list[int]()
    closes: Callable[[int], bool] = lambda token_id: texts[token_id][:1] in (b'"', b"}", b"]", b"<")  # noqa: E731
    while not state.is_terminated:
        assert len(drawn) < _MAX_STEPS, f"no end after {b''.join(texts[each] for each in drawn)!r}"
        choices = allowed_ids(state, model.vocab_size)
        assert choices, "nothing is allowed"
        ends = [token_id for token_id in choices if token_id in model.eos_token_ids]
        if len(drawn) > _NUM_FREE_STEPS:
            choices = ends or [each for each in choices if closes(each)] or choices
        drawn.append(rng.choice(choices))
        assert state.accept(drawn[-1]), f"{drawn[-1]} is allowed and not accepted"
    return drawn


def text_of(token_ids: list[int], texts: tuple[bytes, ...]) -> str:
    return b"".join(texts[token_id] for token_id in token_ids).decode()
