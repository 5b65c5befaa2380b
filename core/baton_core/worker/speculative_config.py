"""The values of `--speculative-config`, under the names of vLLM's `SpeculativeConfig`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final

from baton_core.errors import InvalidConfigError

FIELD: Final = "speculative_config"
MAX_DRAFT_TOKENS: Final = 128
"""Most tokens that are drafted for a sequence at a time."""
DEFAULT_DEPTH: Final = 24
"""Most tokens of a match, and of a draft behind it, where suffixes are compared."""
DEFAULT_LOOKUP: Final = 5
"""Tokens at the end of a text that prompt lookup searches for, where neither bound is given."""


class SpeculativeMethod(StrEnum):
    """The ways to draft tokens."""

    NGRAM = "ngram"
    """Prompt lookup: what followed an earlier occurrence of the last tokens."""
    DRAFT_MODEL = "draft_model"
    """The tokens that a smaller model of the same vocabulary generates."""
    EAGLE = "eagle"
    """The tokens of a head that reads the model's final hidden states."""
    EAGLE3 = "eagle3"
    """The tokens of a head that reads the hidden states of several layers of the model."""
    SUFFIX = "suffix"
    """The tokens that followed most often behind the last ones, in this request and in earlier outputs."""

    @property
    def needs_model(self) -> bool:
        """True if weights of its own make the drafts."""
        return self in (SpeculativeMethod.DRAFT_MODEL, SpeculativeMethod.EAGLE, SpeculativeMethod.EAGLE3)


_UNSUPPORTED: Final = (
    *("mtp", "medusa", "mlp_speculator", "ngram_gpu"),
    *("dflash", "dspark", "custom_class", "extract_hidden_states"),
)
"""Methods of vLLM's that there are not."""
_SAME_FOR_ALL: Final[Mapping[str, tuple[Any, ...]]] = {
    "draft_tensor_parallel_size": (None, 1),
    "quantization": (None,),
    "max_model_len": (None,),
    "revision": (None,),
    "code_revision": (None,),
    "kv_cache_dtype": (None, "auto"),
    "draft_load_config": (None,),
    "enforce_eager": (None, False, True),
    "parallel_drafting": (None, False),
    "disable_padded_drafter_batch": (None, False, True),
    "rejection_sample_method": (None, "standard"),
    "draft_sample_method": (None, "greedy", "probabilistic"),
    "use_heterogeneous_vocab": (None, False),
}
"""Fields of drafts that a model makes, with the values that ask for nothing there is not."""
_BOUNDS: Final = ("prompt_lookup_min", "prompt_lookup_max")
"""Where one of these is given, it is the other, too."""
_NO_MODEL: Final = ("ngram", "[ngram]")
"""Names of prompt lookup in the place of a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """The way in which a worker drafts tokens.

    Raises:
        InvalidConfigError: naming the field, its value and what is allowed.
    """

    method: SpeculativeMethod
    num_speculative_tokens: int
    """Most tokens drafted for a sequence in a step; fewer where that is faster."""
    model: str | None = None
    """Folder or Hugging Face id of the model or head that drafts; None where none does."""
    prompt_lookup_max: int = DEFAULT_LOOKUP
    prompt_lookup_min: int = DEFAULT_LOOKUP
    suffix_decoding_max_tree_depth: int = DEFAULT_DEPTH
    """Most last tokens that are compared, and most that are drafted behind them."""
    suffix_decoding_max_cached_requests: int = 10_000
    """Earlier outputs that are remembered, within bounds of memory; 0: none."""
    suffix_decoding_max_spec_factor: float = 1.0
    """Most tokens that are drafted for each token of a match."""
    suffix_decoding_min_token_prob: float = 0.1
    """Least share of the occurrences that a drafted token must follow in."""
    disable_by_batch_size: int | None = None
    """Sequences of a step above which nothing is drafted; None: no bound."""

    def __post_init__(self) -> None:
        if (self.model is None) is self.method.needs_model:
            allowed = "a folder" if self.model is None else "none, or method draft_model, eagle or eagle3"
            raise refusal("model", self.model, allowed)
        _check_count("num_speculative_tokens", self.num_speculative_tokens, MAX_DRAFT_TOKENS)
        _check_count("prompt_lookup_min", self.prompt_lookup_min)
        _check_count("prompt_lookup_max", self.prompt_lookup_max)
        if self.prompt_lookup_min > self.prompt_lookup_max:
            allowed = f"at most {self.prompt_lookup_max}, prompt_lookup_max"
            raise refusal("prompt_lookup_min", self.prompt_lookup_min, allowed)
        _check_count("suffix_decoding_max_tree_depth", self.suffix_decoding_max_tree_depth, MAX_DRAFT_TOKENS)
        most = self.suffix_decoding_max_cached_requests
        if type(most) is not int or most < 0:
            raise refusal("suffix_decoding_max_cached_requests", most, "an integer of at least 0")
        _check_number("suffix_decoding_max_spec_factor", self.suffix_decoding_max_spec_factor, math.inf)
        _check_number("suffix_decoding_min_token_prob", self.suffix_decoding_min_token_prob, 1.0)
        if self.disable_by_batch_size is not None:
            _check_count("disable_by_batch_size", self.disable_by_batch_size)


KEYS: Final = (*(one.name for one in fields(SpeculativeConfig)), *_SAME_FOR_ALL)
"""Fields that the JSON object may have."""


def read_speculative_config(given: Mapping[str, Any] | None) -> SpeculativeConfig | None:
    """Read the JSON object; None and an empty one speculate nothing.

    Raises:
        InvalidConfigError: naming the field, its value and what is allowed.
    """
    if not given:
        return None
    for name, value in given.items():
        if name not in KEYS:
            raise refusal(name, value, ", ".join(KEYS))
        if name not in _SAME_FOR_ALL:
            continue
        allowed = _SAME_FOR_ALL[name]
        if not any(value is one or (value == one and type(value) is type(one)) for one in allowed):
            raise refusal(name, value, " or ".join(map(repr, allowed)))
    values = {name: value for name, value in given.items() if name not in _SAME_FOR_ALL and value is not None}
    values["method"] = _method(given)
    if values.get("model") in _NO_MODEL:
        del values["model"]
    if values["method"] is SpeculativeMethod.SUFFIX:
        depth = values.get("suffix_decoding_max_tree_depth", DEFAULT_DEPTH)
        values.setdefault("num_speculative_tokens", depth)
    if "num_speculative_tokens" not in values:
        raise refusal("num_speculative_tokens", None, f"an integer from 1 to {MAX_DRAFT_TOKENS}")
    for one, other in (_BOUNDS, _BOUNDS[::-1]):
        if one in values:
            values.setdefault(other, values[one])
    return SpeculativeConfig(**values)


def _method(given: Mapping[str, Any]) -> SpeculativeMethod:
    name = given.get("method")
    if name is None and (model := given.get("model")) is not None:
        name = SpeculativeMethod.NGRAM if model in _NO_MODEL else SpeculativeMethod.DRAFT_MODEL
    if name in tuple(SpeculativeMethod):
        return SpeculativeMethod(name)
    allowed = " or ".join(SpeculativeMethod)
    why = f"; {name} is not supported yet" if name in _UNSUPPORTED else ""
    raise refusal("method", name, f"{allowed}{why}")


def _check_count(name: str, value: object, most: int | None = None) -> None:
    if type(value) is not int or value < 1 or (most is not None and value > most):
        allowed = "an integer of at least 1" if most is None else f"an integer from 1 to {most}"
        raise refusal(name, value, allowed)


def _check_number(name: str, value: object, most: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and 0.0 <= value <= most and value < math.inf):  # type: ignore[operator]  # it is a number
        raise refusal(
            name, value, "a number of at least 0" if most == math.inf else f"a number from 0 to {most:g}"
        )


def refusal(name: str, value: object, allowed: str) -> InvalidConfigError:
    """Return the error of a field's value."""
    return InvalidConfigError(f"{FIELD} has {name}: {value!r}; allowed: {allowed}")
