"""What an operator may set about HTTP."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from baton_core.errors import InvalidConfigError
from baton_router.http.connection_limits import ConnectionLimits

_TOKEN_CHARACTERS: Final = frozenset(map(chr, range(0x21, 0x7F)))


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Settings of the HTTP server.

    Raises:
        InvalidConfigError: a value is out of range; the message names flag and what is allowed.
    """

    api_keys: tuple[str, ...] = ()
    """One of them is needed on every route but those of health; none: everybody may ask."""
    open_metrics: bool = False
    """Whether /metrics needs none."""
    shared_prefix_cache: bool = False
    """Whether requests of different keys may use each other's cached prefixes."""
    max_body_bytes: int = 4 * 2**20
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    root_path: str = ""
    """What a proxy in front takes off the paths."""
    enable_operator_routes: bool = False
    allowed_origins: tuple[str, ...] = ()
    """Pages of these origins may call from a browser; `*` is all. Without any there are no CORS headers."""
    allow_credentials: bool = False
    allowed_methods: tuple[str, ...] = ("*",)
    allowed_headers: tuple[str, ...] = ("*",)
    enable_auto_tool_choice: bool = False
    """Whether the model may decide to call a tool."""
    tool_call_parser: str = ""
    """How the model writes calls of tools; empty: it does not."""
    reasoning_parser: str = ""
    """How the model marks its thoughts; empty: it does not."""
    tool_parser_plugin: str = ""
    """A Python file that registers further parsers."""

    def __post_init__(self) -> None:
        for key in self.api_keys:
            if not key or not _TOKEN_CHARACTERS.issuperset(key):
                raise InvalidConfigError("--api-key is of other characters; allowed: visible ASCII")
        _check("--max-body-bytes", self.max_body_bytes, self.max_body_bytes >= 1, "1 or more")
        is_root = not self.root_path or (self.root_path.startswith("/") and not self.root_path.endswith("/"))
        _check("--root-path", self.root_path, is_root, "a path such as /baton, without a slash at its end")
        if self.enable_auto_tool_choice and not self.tool_call_parser:
            raise InvalidConfigError("--enable-auto-tool-choice is given; allowed: beside --tool-call-parser")


def _check(flag: str, value: object, is_allowed: bool, allowed: str) -> None:
    if not is_allowed:
        raise InvalidConfigError(f"{flag} is {value!r}; allowed: {allowed}")
