"""vLLM's module of engine arguments, as far as its names mean something here."""

from __future__ import annotations

from typing import Final, NoReturn

from baton.config.engine_args import AsyncEngineArgs, EngineArgs
from baton.config.flags import COUNT
from baton_core.errors import InvalidConfigError

__all__ = ["AsyncEngineArgs", "EngineArgs", "human_readable_int", "human_readable_int_or_auto"]
_INTERNAL: Final = (
    *("NEEDS_HELP", "T", "TypeHint", "TypeHintT", "logger", "_compute_kwargs", "_raise_unsupported_error"),
    *("collection_to_kwargs", "contains_type", "get_kwargs", "get_type", "get_type_hints", "is_not_builtin"),
    *("is_online_quantization", "is_type", "literal_to_kwargs", "optional_type", "parse_type"),
    "union_dict_and_str",
)


def human_readable_int(value: str) -> int:
    """Return the integer that a text such as 1k, 1K, 25.6k or 4096 means; k is 1000 and K is 1024.

    Raises:
        InvalidConfigError: it means none.
    """
    text = value.strip()
    number = int(text) if text.lstrip("-").isdecimal() else COUNT.read(text)
    if not isinstance(number, int):
        raise InvalidConfigError(f"value is {value!r}; allowed: an integer, or as {COUNT.words}")
    return number


def human_readable_int_or_auto(value: str) -> int:
    """Return the same, and -1 for `auto`.

    Raises:
        InvalidConfigError: it is neither.
    """
    return -1 if value.strip().lower() == "auto" else human_readable_int(value)


def __getattr__(name: str) -> NoReturn:
    if name in _INTERNAL:
        text = f"{name} is internal to vLLM's parser; EngineArgs.add_cli_args adds all flags to one of yours"
        raise ImportError(text, name=name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
