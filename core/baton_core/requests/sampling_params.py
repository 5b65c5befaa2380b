"""Sampling parameters of a request: how its tokens are chosen and when it ends.

Names, defaults and meanings are those of vLLM's documented `SamplingParams`, and of the class that callers
write. Values are checked when the object is made, so an invalid one exists nowhere.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import Any, Final

from baton_core.errors import InvalidRequestError
from baton_core.requests.repetition import RepetitionDetectionParams
from baton_core.requests.structured_outputs import StructuredOutputsParams
from baton_core.requests.vocabulary import check_token_ids

GREEDY_BELOW: Final = 1e-5
"""A temperature below this means greedy, as it does in vLLM."""

MAX_N: Final = 16_384
"""Sequences of one request that messages can number; routers allow fewer."""
MAX_STOP_STRINGS: Final = 32
MAX_STOP_CHARACTERS: Final = 1024
"""Characters of one stop string, as much text as it may hold back."""
MAX_STOP_TOKEN_IDS: Final = 1024
MAX_LOGIT_BIASES: Final = 1024
MAX_BAD_WORDS: Final = 256
MAX_LOGPROB_TOKEN_IDS: Final = 1024
MAX_LOGITS_PROCESSORS: Final = 16
MAX_EXTRA_ARGS_BYTES: Final = 16_384
TOKEN_ID_LIMIT: Final = 2**31

_SEED_LIMIT: Final = 2**63
_FLAGS: Final = (
    "ignore_eos",
    "flat_logprobs",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
)
_INTEGERS: Final = {
    "seed": (-_SEED_LIMIT, _SEED_LIMIT - 1),
    "max_tokens": (1, TOKEN_ID_LIMIT),
    "min_tokens": (0, TOKEN_ID_LIMIT),
    "logprobs": (-1, TOKEN_ID_LIMIT),
    "prompt_logprobs": (-1, TOKEN_ID_LIMIT),
    "thinking_token_budget": (-1, TOKEN_ID_LIMIT),
    "stream_interval": (1, TOKEN_ID_LIMIT),
}
"""Fields that may also be whole floats, and all but `min_tokens` None."""
_LISTS: Final = ("stop", "stop_token_ids", "bad_words", "logits_processors")


class RequestOutputKind(IntEnum):
    """Kinds of outputs that an iterator yields; names and numbers are vLLM's."""

    CUMULATIVE = 0
    """The output so far, each time."""
    DELTA = 1
    """The new part of the output, each time."""
    FINAL_ONLY = 2
    """The whole output, once, at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters of one request, as routers and workers have them.

    Raises:
        InvalidRequestError: a value is out of range; the message names field, value and what is allowed.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    """None, or -1, which becomes None, lets the router choose one."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    structured_outputs: StructuredOutputsParams | None = None
    repetition_detection: RepetitionDetectionParams | None = None
    thinking_token_budget: int | None = None
    logits_processors: tuple[str | Callable[..., Any], ...] = ()
    extra_args: Mapping[str, Any] | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    skip_reading_prefix_cache: bool | None = None
    stream_interval: int | None = None
    """Tokens of a sequence that make an output of a stream, but for its first and its last; None is 1."""

    def __post_init__(self) -> None:
        _check_params(self)

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def has_penalties(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)

    @property
    def changes_logits(self) -> bool:
        """True if logits may change before temperature and filters, bad words and thinking aside."""
        given = (self.min_tokens, self.logit_bias, self.structured_outputs, self.logits_processors)
        return any(given) or self.has_penalties or self.allowed_token_ids is not None

    @property
    def reads_prefix_cache(self) -> bool:
        """True if cached blocks of the prompt may be used instead of computing them."""
        if self.skip_reading_prefix_cache is None:
            return self.prompt_logprobs is None
        return not self.skip_reading_prefix_cache


def derived_seed(seed: int, index: int) -> int:
    """Seed with which a request for one sequence gets the tokens of sequence `index` of one for several.

    Index 0 has `seed` itself; the others 0 to 2**63 - 1.
    """
    return _digest(seed, index) >> 1 if index else seed


def sequence_seed(seed: int, index: int) -> int:
    """Key of the noise of sequence `index` of a request: unsigned, 64 bits."""
    return _digest(derived_seed(seed, index), 0)


def _digest(seed: int, index: int) -> int:
    key = seed.to_bytes(8, "little", signed=True) + index.to_bytes(4, "little")
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little")


def check_vocabulary(params: SamplingParams, *, vocab_size: int, max_logprobs: int) -> None:
    """Refuse token ids that the model lacks, and more log-probabilities than are given of one position.

    Raises:
        InvalidRequestError: naming the field.
    """
    check_token_ids("stop_token_ids", params.stop_token_ids, vocab_size)
    check_token_ids("allowed_token_ids", params.allowed_token_ids or (), vocab_size)
    check_token_ids("logprob_token_ids", params.logprob_token_ids or (), vocab_size)
    check_token_ids("logit_bias", tuple(params.logit_bias or ()), vocab_size)
    for field, value in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
        wanted = vocab_size if value == -1 else value or 0
        if wanted > max_logprobs:
            lowest = -1 if max_logprobs == vocab_size else 0
            allowed = f"{lowest} to {max_logprobs}, of which --max-logprobs decides"
            raise InvalidRequestError(field, value, allowed)


def nothing_left(
    params: SamplingParams, fields: Sequence[str], num_output_tokens: int
) -> InvalidRequestError:
    """Return the error of a request whose fields together leave no token to sample."""
    first, *others = fields
    value = getattr(params.structured_outputs, first.rsplit(".", 1)[-1], None)
    if not first.startswith("structured_outputs."):
        value = getattr(params, first)
    beside = f" beside {' and '.join(others)}" if others else ""
    allowed = (
        f"what leaves a token to sample{beside}; none is left after {num_output_tokens} tokens of output"
    )
    return InvalidRequestError(first, value, allowed)


def held_off_token_ids(params: SamplingParams, eos_token_ids: Collection[int]) -> tuple[int, ...]:
    """Return the tokens that are not sampled before `min_tokens`: end tokens, also those that end nothing."""
    return tuple(sorted({*params.stop_token_ids, *eos_token_ids})) if params.min_tokens else ()


def check_first_token(
    params: SamplingParams, bad_words: Sequence[Sequence[int]], held_off: Collection[int]
) -> None:
    """Refuse parameters that leave no token to sample at the first position already.

    Grammars are not checked: their first tokens are known once they are compiled.

    Raises:
        InvalidRequestError: naming the fields.
    """
    if params.allowed_token_ids is None:
        return
    allowed, others = set(params.allowed_token_ids), list[str]()
    bad_token_ids = {word[0] for word in bad_words if len(word) == 1}
    for field, token_ids in (("min_tokens", held_off), ("bad_words", bad_token_ids)):
        if not allowed.isdisjoint(token_ids):
            allowed.difference_update(token_ids)
            others.append(field)
    if not allowed:
        raise nothing_left(params, ["allowed_token_ids", *others], 0)


def _check_params(params: SamplingParams) -> None:
    """Check every field; mutates `params`, which is being made: its lists become its own, a -1 for None None.

    Raises:
        InvalidRequestError: a value is out of range.
    """
    _check_numbers(params)
    for name in _LISTS:
        _set(params, name, _as_tuple(name, getattr(params, name)))
    for name in ("allowed_token_ids", "logprob_token_ids"):
        if getattr(params, name) is not None:
            _set(params, name, _as_tuple(name, getattr(params, name)))
    for name in _FLAGS:
        _check_bool(name, getattr(params, name))
    if params.skip_reading_prefix_cache is not None:
        _check_bool("skip_reading_prefix_cache", params.skip_reading_prefix_cache)
    _check_texts("stop", params.stop, MAX_STOP_STRINGS)
    _check_texts("bad_words", params.bad_words, MAX_BAD_WORDS)
    _check_ids("stop_token_ids", params.stop_token_ids, MAX_STOP_TOKEN_IDS)
    _check_ids("allowed_token_ids", params.allowed_token_ids or (), TOKEN_ID_LIMIT)
    _check_ids("logprob_token_ids", params.logprob_token_ids or (), MAX_LOGPROB_TOKEN_IDS)
    _check_together(params)
    _set(params, "logit_bias", _as_biases(params.logit_bias))
    _check_kind(params, "structured_outputs", StructuredOutputsParams)
    _check_kind(params, "repetition_detection", RepetitionDetectionParams)
    _check_processors(params.logits_processors)
    _set(params, "extra_args", _as_extra_args(params.extra_args))


def _check_numbers(params: SamplingParams) -> None:
    _check_int("n", params.n, 1, MAX_N)
    _check_float("presence_penalty", params.presence_penalty, -2.0, 2.0)
    _check_float("frequency_penalty", params.frequency_penalty, -2.0, 2.0)
    _check_float("repetition_penalty", params.repetition_penalty, 0.0, math.inf, is_low_open=True)
    _check_float("temperature", params.temperature, 0.0, math.inf)
    _check_float("top_p", params.top_p, 0.0, 1.0, is_low_open=True)
    _check_int("top_k", params.top_k, -1, TOKEN_ID_LIMIT)
    _check_float("min_p", params.min_p, 0.0, 1.0)
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(params, name) is True:
            _set(params, name, 1)
    for name, (low, high) in _INTEGERS.items():
        if getattr(params, name) is not None or name == "min_tokens":
            _set(params, name, _as_int(name, getattr(params, name), low, high))
    for name in ("seed", "thinking_token_budget"):
        if getattr(params, name) == -1:
            _set(params, name, None)


def _check_together(params: SamplingParams) -> None:
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        allowed = f"at most max_tokens, {params.max_tokens}"
        raise InvalidRequestError("min_tokens", params.min_tokens, allowed)
    if params.stop and not params.detokenize:
        raise InvalidRequestError("stop", params.stop, "none where detokenize is false")
    if params.prompt_logprobs is not None and params.skip_reading_prefix_cache is False:
        raise InvalidRequestError("skip_reading_prefix_cache", False, "true or none beside prompt_logprobs")
    for name in ("allowed_token_ids", "logprob_token_ids"):
        if getattr(params, name) == ():
            raise InvalidRequestError(name, [], "at least one token id")


def _check_kind(params: SamplingParams, name: str, kind: type) -> None:
    value = getattr(params, name)
    if value is not None and not isinstance(value, kind):
        raise InvalidRequestError(name, value, f"{kind.__name__} or None")


def _set(params: SamplingParams, name: str, value: object) -> None:
    object.__setattr__(params, name, value)


def _as_tuple(field: str, value: object) -> tuple[Any, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Iterable):
        raise InvalidRequestError(field, value, "a list")
    return tuple(value)


def _check_bool(field: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidRequestError(field, value, "true or false")


def _as_int(field: str, value: object, low: int, high: int) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    _check_int(field, value, low, high)
    assert isinstance(value, int)
    return value


def _check_int(field: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequestError(field, value, f"an integer from {low} to {high}")


def _check_float(field: str, value: object, low: float, high: float, *, is_low_open: bool = False) -> None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        is_in_range = (low < value or (value == low and not is_low_open)) and value <= high
        if is_in_range and abs(value) <= sys.float_info.max:
            return
    lowest = "" if low == -math.inf else f" {'over' if is_low_open else 'from'} {low:g}"
    highest = "" if high == math.inf else f" to {high:g}"
    raise InvalidRequestError(field, value, f"a finite number{lowest}{highest}")


def _check_texts(field: str, texts: tuple[Any, ...], limit: int) -> None:
    if len(texts) > limit:
        raise InvalidRequestError(field, f"{len(texts)} strings", f"at most {limit}")
    for text in texts:
        if not isinstance(text, str) or not text:
            raise InvalidRequestError(field, text, "non-empty strings")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise InvalidRequestError(field, text, "text that UTF-8 can hold")
        if len(text) > MAX_STOP_CHARACTERS:
            raise InvalidRequestError(field, text, f"at most {MAX_STOP_CHARACTERS} characters each")


def _check_ids(field: str, token_ids: tuple[Any, ...], limit: int) -> None:
    if len(token_ids) > limit:
        raise InvalidRequestError(field, f"{len(token_ids)} ids", f"at most {limit}")
    for token_id in token_ids:
        _check_int(field, token_id, 0, TOKEN_ID_LIMIT - 1)


def _as_biases(value: object) -> dict[int, float] | None:
    """Keys may be integers in text, as JSON has them."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidRequestError("logit_bias", value, "an object of token ids and numbers")
    if len(value) > MAX_LOGIT_BIASES:
        raise InvalidRequestError("logit_bias", f"{len(value)} entries", f"at most {MAX_LOGIT_BIASES}")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        is_text = isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 11
        token_id = int(key) if is_text else key
        _check_int("logit_bias", token_id, 0, TOKEN_ID_LIMIT - 1)
        _check_float(f"logit_bias[{token_id}]", bias, -math.inf, math.inf)
        if token_id in biases:
            raise InvalidRequestError("logit_bias", key, f"one number for token {token_id}, not two")
        biases[token_id] = float(bias)
    return biases or None


def _check_processors(processors: tuple[str | Callable[..., Any], ...]) -> None:
    if len(processors) > MAX_LOGITS_PROCESSORS:
        limit = f"at most {MAX_LOGITS_PROCESSORS}"
        raise InvalidRequestError("logits_processors", f"{len(processors)} of them", limit)
    for processor in processors:
        if not (callable(processor) or (isinstance(processor, str) and ":" in processor)):
            raise InvalidRequestError("logits_processors", processor, "names such as package.module:function")


def _as_extra_args(value: object) -> Mapping[str, Any] | None:
    """A copy as JSON has it, which is what a worker of another process gets."""
    if value is None:
        return None
    allowed = f"an object that JSON can hold, in at most {MAX_EXTRA_ARGS_BYTES} bytes"
    if not isinstance(value, Mapping):
        raise InvalidRequestError("extra_args", value, allowed)
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise InvalidRequestError("extra_args", value, allowed) from None
    if len(text) > MAX_EXTRA_ARGS_BYTES:
        raise InvalidRequestError("extra_args", f"{len(text)} bytes", allowed)
    copy: dict[str, Any] = json.loads(text)
    return copy
