"""The fields of `EngineArgs` that say how tokens are drafted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from baton.config.engine_arg_fields import Part, arg
from baton.config.flags import Range
from baton_core.errors import InvalidConfigError
from baton_core.worker.speculative_config import (
    MAX_DRAFT_TOKENS,
    SpeculativeConfig,
    read_speculative_config,
)

_KEYS: Final = {
    "spec_method": "method",
    "spec_model": "model",
    "spec_tokens": "num_speculative_tokens",
}
"""Keys of `speculative_config` by the fields that are short for them."""


@dataclass(kw_only=True)
class SpeculativeArgs:
    """Part of `EngineArgs`."""

    speculative_config: Mapping[str, Any] | None = arg(
        dict,
        None,
        "JSON with method, num_speculative_tokens and more: draft tokens, which a step verifies; "
        "see docs/speculative_decoding.md",
    )
    spec_method: str | None = arg(str, None, "method of speculative_config", part=Part.LAUNCHER)
    spec_model: str | None = arg(str, None, "model of speculative_config", part=Part.LAUNCHER)
    spec_tokens: int | None = arg(
        int, None, "num_speculative_tokens of speculative_config", Range(1, MAX_DRAFT_TOKENS), Part.LAUNCHER
    )

    def create_speculative_config(self, *args: object, **kwargs: object) -> SpeculativeConfig | None:
        """Return how tokens are drafted, None where none are; the arguments, a target's, change nothing."""
        return read_speculative_config(self.speculative_config)


def read_speculative_args(args: Any) -> None:
    """Mutate `EngineArgs`: `spec_method`, `spec_model` and `spec_tokens` are keys of `speculative_config`.

    Raises:
        InvalidConfigError: the mapping has another value, or a value that cannot hold.
    """
    config = dict(args.speculative_config or {})
    for name, key in _KEYS.items():
        value = getattr(args, name)
        if value is None:
            continue
        if config.setdefault(key, value) != value:
            text = f"{name} is {value!r} and speculative_config has {key}: {config[key]!r}"
            raise InvalidConfigError(f"{text}; allowed: one value")
    args.speculative_config = config or None
    config_read = read_speculative_config(config)
    if config_read is not None and args.async_scheduling:
        text = "async_scheduling is True; allowed with speculative_config: False"
        raise InvalidConfigError(f"{text} (a draft needs the tokens of the step before it)")
