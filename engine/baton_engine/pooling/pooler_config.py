"""The operator's values of how a model pools, by the names of vLLM's `PoolerConfig`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
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


KEYS: Final = (
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
        if name not in KEYS:
            raise InvalidConfigError(f"pooler_config has {name!r:.80}; allowed: {', '.join(KEYS)}")
    if given.pop("enable_chunked_processing", False) is not False:
        raise _refused("enable_chunked_processing", True, "False")
    if "max_embed_len" in given:
        raise _refused("max_embed_len", given["max_embed_len"], "None")
    kind = given.pop("pooling_type", None)
    if kind is not None:
        given.setdefault("tok_pooling_type" if kind in TOKEN_POOLING_TYPES else "seq_pooling_type", kind)
    for name, value in given.items():
        is_allowed, allowed = _ALLOWED[name]
        if not is_allowed(value):
            raise _refused(name, value, allowed)
    task, columns = given.pop("task", None), given.pop("returned_token_ids", None)
    return PoolerConfig(
        task=None if task is None else PoolingTask(task),
        returned_token_ids=None if columns is None else tuple(columns),
        **given,
    )


def _is_natural(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple) and 0 < len(value) <= MAX_TOKENS and all(map(_is_natural, value))


_ALLOWED: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "task": (list(PoolingTask).__contains__, ", ".join(PoolingTask)),
    "seq_pooling_type": (POOLING_TYPES.__contains__, ", ".join(POOLING_TYPES)),
    "tok_pooling_type": (TOKEN_POOLING_TYPES.__contains__, ", ".join(TOKEN_POOLING_TYPES)),
    "use_activation": (lambda value: isinstance(value, bool), "True, False"),
    "dimensions": (lambda value: _is_natural(value) and value > 0, "an integer of at least 1"),
    "step_tag_id": (_is_natural, "a token id"),
    "returned_token_ids": (_is_list, f"a list of 1 to {MAX_TOKENS} integers of at least 0"),
    "logit_mean": (_is_finite, "a finite number"),
    "logit_sigma": (lambda value: _is_finite(value) and value > 0, "a finite number"),
}
"""For each value that is kept, whether it is allowed, and which are."""


def _refused(name: str, value: object, allowed: str) -> InvalidConfigError:
    return InvalidConfigError(f"{name} of pooler_config is {value!r:.80}; allowed: {allowed}")
