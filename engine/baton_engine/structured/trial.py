"""Compiles a grammar on trial, in a process that ends when that takes too much.

A compiled grammar cannot travel: xgrammar writes one out a hundred times larger than it is, and reads it
slower than it compiles; llguidance writes none. So a trial says what compiling costs, or what is wrong with
the grammar, and the worker then compiles those alone that are known to be within bounds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from baton_core.errors import BatonError, ErrorCode, InvalidRequestError, RequestError
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_engine.structured.absent_modules import import_without, leave_out
from baton_engine.structured.interface import EndTokens, Grammar
from baton_engine.structured.selection import Backends
from baton_engine.structured.vocabulary import Vocabulary
from baton_sandbox.deep_stack import run_deep
from baton_sandbox.process_limits import anonymous_bytes

TARGET: Final = "baton_engine.structured.trial:prepare_trials"
_FIRST_GRAMMARS: Final = ({"choice": ("a",)}, {"grammar": 'start: "a"'})
"""Together they load every library that may be used, and its view of the vocabulary."""
_NUM_STEPS: Final = 32
MAX_STEP_S: Final = 0.1
"""Processor time that a token's mask may take."""
ALLOWED: Final = "one that this model's tokens can spell"


class TrialResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of one grammar."""

    num_bytes: int = 0
    """Memory that the compiled grammar takes."""
    code: str = ""
    """`ErrorCode` of the refusal; empty where the grammar is good."""
    text: str = ""
    field: str = ""
    """The place of the error in the grammar, with the correct contents in `allowed`."""
    allowed: str = ""

    def error(self, params: StructuredOutputsParams) -> BatonError | None:
        """The error that a grammar was refused with; None where it is good."""
        if self.field:
            return InvalidRequestError(self.field, getattr(params, params.kind), self.allowed)
        return RequestError(ErrorCode(self.code), self.text) if self.code else None


def prepare_trials(
    folder: str, vocab_size: int, eos_token_ids: Collection[int], backend: str
) -> Callable[[bytes], bytes]:
    """Load the libraries and the vocabulary; return what tries a grammar. Called in the fork server."""
    with suppress(ImportError):  # each library is optional
        import_without("tvm_ffi", "torch")
    leave_out("torch", "transformers")
    vocabulary = Vocabulary.read(Path(folder), vocab_size)
    end = EndTokens.of(eos_token_ids, vocab_size)
    backends = Backends(vocabulary, end, backend)
    for first in _FIRST_GRAMMARS:
        _try(backends, end, StructuredOutputsParams(**first))

    def work(task: bytes) -> bytes:
        params = msgspec.json.decode(task, type=StructuredOutputsParams)
        return msgspec.json.encode(_try(backends, end, params))

    return work


def _try(backends: Backends, end: EndTokens, params: StructuredOutputsParams) -> TrialResult:
    before = anonymous_bytes()
    field = f"structured_outputs.{params.kind}"
    try:
        grammar, step_s = run_deep(lambda: _compile_and_walk(backends, end, params))
    except InvalidRequestError as error:
        return TrialResult(field=error.field, allowed=error.allowed)
    except BatonError as error:
        return TrialResult(code=error.code, text=str(error))
    if step_s is None:
        return TrialResult(field=field, allowed=ALLOWED)
    if step_s > MAX_STEP_S:
        return TrialResult(field=field, allowed=f"what takes at most {MAX_STEP_S:g} s for a token's mask")
    return TrialResult(num_bytes=max(grammar.num_bytes, anonymous_bytes() - before))


def _compile_and_walk(
    backends: Backends, end: EndTokens, params: StructuredOutputsParams
) -> tuple[Grammar, float | None]:
    """Return a grammar, and how long the slowest of an output's first steps takes; None if it has none."""
    grammar = backends.compile(params)
    state, rng, slowest_s = grammar.new_state(), random.Random(0), 0.0
    if not state.can_begin:
        return grammar, None
    row = np.zeros_like(end.mask)
    for _ in range(_NUM_STEPS):
        began_s = time.thread_time()
        state.fill_mask(row)
        bits = np.unpackbits((row & ~end.mask).view(np.uint8), bitorder="little")
        token_ids = np.flatnonzero(bits)
        if not len(token_ids):
            break
        state.accept(int(rng.choice(token_ids)))
        slowest_s = max(slowest_s, time.thread_time() - began_s)
        if slowest_s > MAX_STEP_S:
            break
    return grammar, slowest_s
