"""The operator's values of how a model pools, by the names of vLLM's `PoolerConfig`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from baton_core.errors import InvalidConfigError
from baton_core.requests.pooling import PoolingTask

POOLING_TYPES: Final = ("CLS", "LAST", "MEAN")
TOKEN_POOLING_TYPES: Final = ("ALL", "STEP")
MAX_TOKENS: Final = 1 << 20
"""Tokens that `returned_token_ids` may name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolerConfig:
    """Values that come before those of the model's files; None is not said."""

    task: PoolingTask | None = None
    """The only task that the model is to have."""
    seq_pooling_type: str | None = None
    tok_pooling_type: str | None = None
    use_activation: bool | None = None
    dimensions: int | None = None
    logit_mean: float = 0.0
    logit_sigma: float = 1.0
    step_tag_id: int | None = None
    returned_token_ids: tuple[int, ...] | None = None


_KEYS: Final = (
    *("task", "pooling_type", "seq_pooling_type", "tok_pooling_type", "use_activation", "dimensions"),
    *("enable_chunked_processing", "max_embed_len", "logit_mean", "logit_sigma", "step_tag_id"),
    "returned_token_ids",
)


def read_pooler_config(values: Mapping[str, Any]) -> PoolerConfig:
    """Check the values of a `PoolerConfig`; a None is not said.

    Raises:
        InvalidConfigError: a name is unknown, or a value is wrong or not implemented.
    """
    given = {name: value for name, value in values.items() if value is not None}
    for name in given:
        if name not in _KEYS:
            raise InvalidConfigError(f"pooler_config has {name!r:.80}; allowed: {', '.join(_KEYS)}")
    if given.pop("enable_chunked_processing", False) is not False:
        raise _refused("enable_chunked_processing", True, "False")
    if "max_embed_len" in given:
        raise _refused("max_embed_len", given["max_embed_len"], "None")
    kind = given.pop("pooling_type", None)
    if kind is not None:
        given.setdefault("tok_pooling_type" if kind in TOKEN_POOLING_TYPES else "seq_pooling_type", kind)
    for name, value in given.items():
        _check(name, value)
    task, columns = given.pop("task", None), given.pop("returned_token_ids", None)
    return PoolerConfig(
        task=None if task is None else PoolingTask(task),
        returned_token_ids=None if columns is None else tuple(columns),
        **given,
    )


def _check(name: str, value: Any) -> None:
    match name:
        case "task":
            _require(value in list(PoolingTask), name, value, ", ".join(PoolingTask))
        case "seq_pooling_type":
            _require(value in POOLING_TYPES, name, value, ", ".join(POOLING_TYPES))
        case "tok_pooling_type":
            _require(value in TOKEN_POOLING_TYPES, name, value, ", ".join(TOKEN_POOLING_TYPES))
        case "use_activation":
            _require(isinstance(value, bool), name, value, "True, False")
        case "dimensions":
            _require(_is_integer(value) and value > 0, name, value, "an integer of at least 1")
        case "step_tag_id":
            _require(_is_integer(value) and value >= 0, name, value, "a token id")
        case "returned_token_ids":
            is_list = isinstance(value, list | tuple) and 0 < len(value) <= MAX_TOKENS
            allowed = f"a list of 1 to {MAX_TOKENS} integers of at least 0"
            _require(is_list and all(_is_integer(one) and one >= 0 for one in value), name, value, allowed)
        case _:
            is_number = isinstance(value, int | float) and math.isfinite(value)
            _require(is_number and (name != "logit_sigma" or value > 0), name, value, "a finite number")


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise _refused(name, value, allowed)


def _refused(name: str, value: object, allowed: str) -> InvalidConfigError:
    return InvalidConfigError(f"{name} of pooler_config is {value!r:.80}; allowed: {allowed}")
