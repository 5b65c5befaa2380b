"""Reads values of `EngineArgs` that are objects or mappings of several settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from baton_core.errors import InvalidConfigError

_COUNTS: Final = ("delay_iterations", "max_iterations")
"""Steps that a profiler passes over, and most steps of a trace."""
PROFILER_KEYS: Final = ("profiler", "torch_profiler_dir", *_COUNTS)


def read_objects(args: Any) -> None:
    """Mutate `EngineArgs` that are objects, as vLLM takes them: a dtype of torch's, dataclasses.

    A None of a dataclass is not said.
    """
    if str(args.dtype).startswith("torch."):
        args.dtype = str(args.dtype).removeprefix("torch.")
    if args.hf_token is True:
        args.hf_token = None  # the token of the Hub's own login, which is the default
    for name in (
        *("structured_outputs_config", "profiler_config", "kv_events_config", "quantization_config"),
        *("pooler_config", "speculative_config"),
    ):
        value = getattr(args, name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            given = dataclasses.asdict(value)
            setattr(args, name, {key: one for key, one in given.items() if one is not None})


def read_structured_outputs_config(args: Any) -> None:
    """Mutate `EngineArgs`: the mapping comes before the fields that it has keys for.

    Raises:
        InvalidConfigError: a key asks for what there is not.
    """
    config = dict(args.structured_outputs_config or {})
    backend = config.pop("backend", args.structured_outputs_backend)
    parser = config.pop("reasoning_parser", args.reasoning_parser)
    plugin = config.pop("reasoning_parser_plugin", args.reasoning_parser_plugin)
    for key, value in config.items():
        if value not in (False, None, ""):
            allowed = "backend, reasoning_parser and reasoning_parser_plugin; a request says the rest"
            raise InvalidConfigError(f"structured_outputs_config has {key}: {value!r}; allowed: {allowed}")
    args.structured_outputs_backend = backend
    args.reasoning_parser, args.reasoning_parser_plugin = parser, plugin


def check_profiler_config(config: Mapping[str, Any]) -> None:
    """Check the keys of a profiler's configuration.

    Raises:
        InvalidConfigError: naming the key, its value and what is allowed.
    """
    for key, value in config.items():
        is_folder = key == "torch_profiler_dir" and isinstance(value, str)
        is_count = key in _COUNTS and type(value) is int and value == 0
        if not is_folder and not is_count and (key, value) != ("profiler", "torch"):
            allowed = f'torch_profiler_dir, a folder, "profiler": "torch", and 0 for {" and ".join(_COUNTS)}'
            raise InvalidConfigError(f"profiler_config has {key}: {value!r}; allowed: {allowed}")
