"""Settings of one router process, checked before anything starts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from baton_core.errors import InvalidConfigError
from baton_core.placement import SplitMode
from baton_service.logs import FORMATS, LEVELS


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """What an operator may set.

    Raises:
        InvalidConfigError: a value is out of range; the message names flag, value and what is allowed.
    """

    model: str
    """A model folder, or a Hugging Face Hub id."""
    served_model_names: tuple[str, ...] = ()
    """Names that clients use, the first one first; none means `model` as it is written."""
    host: str = "127.0.0.1"
    port: int = 8100
    """0 lets the system choose."""
    split: SplitMode = SplitMode.AUTO
    min_split_tokens: int = 256
    """Uncached prompt tokens from which `auto` splits."""
    request_timeout_s: float = 600.0
    """For calls without a deadline of their own."""
    shutdown_timeout_s: float = 10.0
    """How long running requests may take to end once the router is told to stop."""
    log_format: str = "text"
    log_level: str = "info"

    def __post_init__(self) -> None:
        _check("--model", self.model, bool(self.model), "a model folder or a Hugging Face Hub id")
        names = self.served_model_names
        are_names = all(name and name.isprintable() for name in names) and len(set(names)) == len(names)
        _check("--served-model-name", names, are_names, "printable names, each once")
        is_host = bool(self.host) and not any(character.isspace() for character in self.host)
        _check("--host", self.host, is_host, "an address of this machine, such as 127.0.0.1 or 0.0.0.0")
        _check("--port", self.port, _is_int(self.port, 0, 65_535), "an integer from 0 to 65535")
        _check("--split", self.split, self.split in list(SplitMode), ", ".join(SplitMode))
        object.__setattr__(self, "split", SplitMode(self.split))
        is_count = _is_int(self.min_split_tokens, 1, 2**31 - 1)
        _check("--min-split-tokens", self.min_split_tokens, is_count, "an integer from 1")
        is_timeout = _is_seconds(self.request_timeout_s) and self.request_timeout_s > 0
        _check("--request-timeout", self.request_timeout_s, is_timeout, "seconds, over 0")
        _check("--shutdown-timeout", self.shutdown_timeout_s, _is_seconds(self.shutdown_timeout_s), "seconds")
        _check("--log-format", self.log_format, self.log_format in FORMATS, ", ".join(FORMATS))
        _check("--log-level", self.log_level, self.log_level in LEVELS, ", ".join(LEVELS))

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names under which the model is served."""
        return self.served_model_names or (self.model,)

    @property
    def address(self) -> str:
        """`host:port`, an IPv6 host in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _check(flag: str, value: object, is_allowed: bool, allowed: str) -> None:
    if not is_allowed:
        raise InvalidConfigError(f"{flag} is {value!r}; allowed: {allowed}")


def _is_int(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_seconds(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and value >= 0
