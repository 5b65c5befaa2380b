"""How a request's tokens are chosen and when it ends.

Names, defaults and meanings are those of vLLM's documented `SamplingParams`. Values are checked when
the object is made, so an invalid one exists nowhere.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from baton_core.errors import InvalidRequestError

MAX_N: Final = 64
MAX_STOP_STRINGS: Final = 32
MAX_STOP_CHARACTERS: Final = 1024
"""Of one stop string: text as long as it may have to be held back."""
MAX_STOP_TOKEN_IDS: Final = 1024
GREEDY_BELOW: Final = 1e-5
"""A temperature below this means greedy, as it does in vLLM."""

_SEED_LIMIT: Final = 2**63
_TOKEN_ID_LIMIT: Final = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters of one request.

    Raises:
        InvalidRequestError: a value is out of range; the message names field, value and what is allowed.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 or -1 means all tokens."""
    min_p: float = 0.0
    seed: int | None = None
    """None, or -1, which becomes None, lets whoever accepts the request choose one."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    max_tokens: int | None = 16
    """None means as many as the model's context holds."""
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", _as_tuple("stop", self.stop))
        object.__setattr__(self, "stop_token_ids", _as_tuple("stop_token_ids", self.stop_token_ids))
        _check_int("n", self.n, 1, MAX_N)
        _check_float("temperature", self.temperature, 0.0, math.inf)
        _check_float("top_p", self.top_p, 0.0, 1.0, is_low_open=True)
        _check_int("top_k", self.top_k, -1, _TOKEN_ID_LIMIT)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _check_int("seed", self.seed, -_SEED_LIMIT, _SEED_LIMIT - 1)
        if self.seed == -1:
            object.__setattr__(self, "seed", None)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1, _TOKEN_ID_LIMIT)
        _check_stop(self.stop)
        _check_stop_token_ids(self.stop_token_ids)
        for field in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            if not isinstance(getattr(self, field), bool):
                raise InvalidRequestError(field, getattr(self, field), "true or false")

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


def sequence_seed(seed: int, index: int) -> int:
    """Key of the noise of sequence `index` of a request: unsigned, 64 bits."""
    key = seed.to_bytes(8, "little", signed=True) + index.to_bytes(4, "little")
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little")


def _as_tuple(field: str, value: object) -> tuple[object, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Iterable):
        raise InvalidRequestError(field, value, "a list")
    return tuple(value)


def _check_int(field: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequestError(field, value, f"an integer from {low} to {high}")


def _check_float(field: str, value: object, low: float, high: float, *, is_low_open: bool = False) -> None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        is_in_range = (low < value or (value == low and not is_low_open)) and value <= high
        if is_in_range and abs(value) <= sys.float_info.max:
            return
    bound = f"{'over' if is_low_open else 'from'} {low:g}" + ("" if high == math.inf else f" to {high:g}")
    raise InvalidRequestError(field, value, f"a finite number {bound}")


def _check_stop(stop: tuple[str, ...]) -> None:
    if len(stop) > MAX_STOP_STRINGS:
        raise InvalidRequestError("stop", f"{len(stop)} strings", f"at most {MAX_STOP_STRINGS}")
    for text in stop:
        if not isinstance(text, str) or not text:
            raise InvalidRequestError("stop", text, "non-empty strings")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise InvalidRequestError("stop", text, "text that UTF-8 can hold")
        if len(text) > MAX_STOP_CHARACTERS:
            raise InvalidRequestError("stop", text, f"at most {MAX_STOP_CHARACTERS} characters each")


def _check_stop_token_ids(token_ids: tuple[int, ...]) -> None:
    if len(token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequestError("stop_token_ids", f"{len(token_ids)} ids", f"at most {MAX_STOP_TOKEN_IDS}")
    for token_id in token_ids:
        _check_int("stop_token_ids", token_id, 0, _TOKEN_ID_LIMIT - 1)
