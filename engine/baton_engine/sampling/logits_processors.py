"""Custom logits processors: functions that requests name, and classes that apply to every request.

A function changes the logits of one row. It takes `(output_token_ids, logits)` or `(prompt_token_ids,
output_token_ids, logits)`, as vLLM's per-request processors do, and `extra_args` by keyword where it has a
parameter of that name. Tokens are lists, logits `[vocab_size] float32`, which it may change; it returns them
or others of that shape. What it does must depend on its arguments alone: another engine may continue the
sequence. Classes are those of `processor_interface`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor

from baton_core.errors import InvalidConfigError, InvalidRequestError
from baton_core.requests.sampling_params import SamplingParams
from baton_core.worker.step_plan import SamplingHistory
from baton_engine.sampling.processor_batch import BatchProcessors
from baton_engine.sampling.processor_interface import LogitsProcessor

_METHODS: Final = ("apply", "is_argmax_invariant", "update_state")
_SHAPES: Final = "functions of (output_token_ids, logits) or (prompt_token_ids, output_token_ids, logits)"


class RequestProcessor:
    """One function.

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
    """The functions that requests may name, and the classes, by their names."""

    def __init__(
        self,
        by_name: Mapping[str, RequestProcessor],
        classes: Mapping[str, type[LogitsProcessor]] | None = None,
    ) -> None:
        self._by_name = dict(by_name)
        self._classes = dict(classes or {})

    @classmethod
    def load(cls, names: Iterable[str]) -> LogitsProcessors:
        """Import functions and classes by names such as `package.module:function`.

        Raises:
            InvalidConfigError: one cannot be imported, takes other arguments, or lacks a method.
        """
        found = {name: _load(name) for name in names}
        functions = {name: one for name, one in found.items() if isinstance(one, RequestProcessor)}
        return cls(functions, {name: one for name, one in found.items() if isinstance(one, type)})

    @property
    def has_classes(self) -> bool:
        return bool(self._classes)

    def batch_processors(self, vllm_config: Any, device: torch.device) -> BatchProcessors:
        """Make the classes' instances.

        Raises:
            InvalidConfigError: a constructor fails.
        """
        return BatchProcessors(lambda: [self._make(name, vllm_config, device) for name in self._classes])

    def _make(self, name: str, vllm_config: Any, device: torch.device) -> LogitsProcessor:
        try:
            return self._classes[name](vllm_config, device, device.type == "cuda")
        except Exception as error:
            raise InvalidConfigError(
                f"logits_processors has {name!r}, which cannot be made ({type(error).__name__}: {error}); "
                "allowed: classes whose constructor takes (vllm_config, device, is_pin_memory)"
            ) from error

    def of(self, params: SamplingParams) -> tuple[RequestProcessor, ...]:
        """Return the functions of a request.

        Raises:
            InvalidRequestError: it names one that is not here, or has one that takes other arguments, or a
                class does not take its parameters.
        """
        for name, one in self._classes.items():
            try:
                getattr(one, "validate_params", _take)(params)
            except ValueError as error:
                allowed = f"what the logits processor {name} takes ({error})"
                raise InvalidRequestError("extra_args", params.extra_args, allowed) from None
        return tuple(map(self._get, params.logits_processors))

    def _get(self, processor: str | Callable[..., Any]) -> RequestProcessor:
        if processor in self._classes:
            allowed = "a function; this is a class, which applies to every request"
            raise InvalidRequestError("logits_processors", processor, allowed)
        if isinstance(processor, str):
            if processor not in self._by_name:
                allowed = ", ".join(self._by_name) or "none, the operator allows no names"
                raise InvalidRequestError("logits_processors", processor, allowed)
            return self._by_name[processor]
        try:
            return RequestProcessor(processor)
        except TypeError:
            raise InvalidRequestError("logits_processors", processor, _SHAPES) from None


def _take(params: SamplingParams) -> None:
    """Take all parameters: a class may have no `validate_params`."""


def _load(name: str) -> RequestProcessor | type[LogitsProcessor]:
    module_name, _, path = name.partition(":")
    try:
        found: Any = import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
        return _as_class(found) if isinstance(found, type) else RequestProcessor(found)
    except Exception as error:
        raise InvalidConfigError(
            f"logits_processors has {name!r}, which cannot be used ({type(error).__name__}: {error}); "
            "allowed: names such as package.module:function or package.module:Class"
        ) from error


def _as_class(found: type[Any]) -> type[LogitsProcessor]:
    if lacking := [name for name in _METHODS if not callable(getattr(found, name, None))]:
        raise TypeError(f"the class has no {', '.join(lacking)}; allowed: classes with {', '.join(_METHODS)}")
    return found


def _parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    if not callable(function) or isinstance(function, type):
        raise TypeError(f"it is {function!r}; allowed: {_SHAPES}")
    try:
        return inspect.signature(function).parameters
    except ValueError as error:
        raise TypeError(f"its parameters are not known ({error}); allowed: {_SHAPES}") from None


def _is_required(parameter: inspect.Parameter) -> bool:
    is_positional = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    return is_positional and parameter.default is parameter.empty and parameter.name != "extra_args"
