"""Custom logits processors: functions that change the logits of one row.

Such a function takes `(output_token_ids, logits)` or `(prompt_token_ids, output_token_ids, logits)`, as
vLLM's per-request processors do, and `extra_args` by keyword where it has a parameter of that name. Tokens
are lists, logits `[vocab_size] float32`, which it may change; it returns them or others of that shape. What
it does must depend on its arguments alone: another engine may continue the sequence.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from baton_core.errors import InvalidConfigError, InvalidRequestError
from baton_core.requests.sampling_params import SamplingParams
from baton_core.worker.step_plan import SamplingHistory

_SHAPES = "functions of (output_token_ids, logits) or (prompt_token_ids, output_token_ids, logits)"


class LogitsProcessor:
    """One logits processor.

    Raises:
        TypeError: it is not callable, or takes other arguments.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._name = getattr(function, "__qualname__", type(function).__qualname__)
        parameters = _parameters_of(function)
        extra_args = parameters.get("extra_args")
        self._takes_extra_args = extra_args is not None
        self._needs_extra_args = extra_args is not None and extra_args.default is extra_args.empty
        num_required = sum(map(_is_required, parameters.values()))
        if num_required not in (2, 3):
            raise TypeError(f"it requires {num_required} arguments; allowed: {_SHAPES}")
        self._takes_prompt = num_required == 3

    def __call__(self, history: SamplingHistory, logits: Tensor) -> Tensor:
        """Return the logits `[vocab_size] float32` that the function makes of `logits`, which may change.

        Raises:
            ValueError: it returns something else.
        """
        tokens = [list(history.output_token_ids)]
        if self._takes_prompt:
            tokens.insert(0, list(history.prompt_token_ids))
        extra_args, keywords = history.rules.params.extra_args, {}
        if self._needs_extra_args or (self._takes_extra_args and extra_args is not None):
            keywords["extra_args"] = dict(extra_args or {})
        made = self._function(*tokens, logits, **keywords)
        if not isinstance(made, Tensor) or made.shape != logits.shape:
            shown = f"{list(made.shape)}" if isinstance(made, Tensor) else repr(made)[:80]
            raise ValueError(f"{self._name} returned {shown}; allowed: logits {list(logits.shape)}")
        # An infinite logit is sampled, NaN is not.
        highest = torch.finfo(logits.dtype).max
        return made.to(logits).nan_to_num(nan=-torch.inf, posinf=highest, neginf=-torch.inf)


class LogitsProcessors:
    """The logits processors that requests may name."""

    def __init__(self, by_name: Mapping[str, LogitsProcessor]) -> None:
        self._by_name = dict(by_name)

    @classmethod
    def load(cls, names: Iterable[str]) -> LogitsProcessors:
        """Import functions by names such as `package.module:function`.

        Raises:
            InvalidConfigError: one cannot be imported, or takes other arguments.
        """
        return cls({name: _load(name) for name in names})

    def of(self, params: SamplingParams) -> tuple[LogitsProcessor, ...]:
        """Return the processors of a request.

        Raises:
            InvalidRequestError: it names one that is not here, or has one that takes other arguments.
        """
        return tuple(map(self._get, params.logits_processors))

    def _get(self, processor: str | Callable[..., Any]) -> LogitsProcessor:
        if isinstance(processor, str):
            if processor not in self._by_name:
                allowed = ", ".join(self._by_name) or "none, the operator allows no names"
                raise InvalidRequestError("logits_processors", processor, allowed)
            return self._by_name[processor]
        try:
            return LogitsProcessor(processor)
        except TypeError:
            raise InvalidRequestError("logits_processors", processor, _SHAPES) from None


def _load(name: str) -> LogitsProcessor:
    module_name, _, path = name.partition(":")
    try:
        found: Any = import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
        return LogitsProcessor(found)
    except Exception as error:
        raise InvalidConfigError(
            f"logits_processors has {name!r}, which cannot be used ({type(error).__name__}: {error}); "
            "allowed: names such as package.module:function"
        ) from error


def _parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    if not callable(function):
        raise TypeError(f"it is {function!r}; allowed: {_SHAPES}")
    try:
        return inspect.signature(function).parameters
    except ValueError as error:
        raise TypeError(f"its parameters are not known ({error}); allowed: {_SHAPES}") from None


def _is_required(parameter: inspect.Parameter) -> bool:
    is_positional = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    return is_positional and parameter.default is parameter.empty and parameter.name != "extra_args"
