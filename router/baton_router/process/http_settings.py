"""Settings of the HTTP server."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from baton_core.errors import InvalidConfigError, require
from baton_router.batches.batch_limits import BatchLimits
from baton_router.text.chat_template import ChatDefaults


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Settings of one router.

    Raises:
        InvalidConfigError: a value is out of range; the message names flag, value and what is allowed.
    """

    max_connections: int = 8192
    """One more ends one that is silent or idle."""
    max_header_bytes: int = 64 * 2**10
    """Size of a request's line and headers together."""
    header_timeout_s: float = 20.0
    """Time from the first byte of a request, or the start of its connection, to the end of its headers."""
    idle_timeout_s: float = 75.0
    """Time between two requests. It is longer than clients keep idle connections, so they close first."""
    stall_timeout_s: float = 60.0
    """Time that a client may take nothing of a response that waits for it."""

    def __post_init__(self) -> None:
        require("--max-connections", self.max_connections, self.max_connections >= 1, "1 or more")
        require("--max-header-bytes", self.max_header_bytes, self.max_header_bytes >= 1024, "1024 or more")
        for flag, seconds in (
            ("--header-timeout", self.header_timeout_s),
            ("--idle-timeout", self.idle_timeout_s),
            ("--stall-timeout", self.stall_timeout_s),
        ):
            require(flag, seconds, math.isfinite(seconds) and seconds > 0, "seconds, over 0")


_EVENTS_SHARE: Final = 8
"""The events of one response take at most one in so many bytes of a store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseStoreLimits:
    """Bounds of the responses that are kept for `previous_response_id` and for those who fetch them.

    Raises:
        InvalidConfigError: a value is out of range; the message names flag, value and what is allowed.
    """

    num_responses: int = 1024
    """0 keeps none."""
    num_bytes: int = 64 * 2**20
    """Bytes of all together, each with the conversation before it."""
    age_s: float = 3600.0

    @property
    def num_event_bytes(self) -> int:
        """Bytes of the events of one response."""
        return self.num_bytes // _EVENTS_SHARE

    def __post_init__(self) -> None:
        require("--max-stored-responses", self.num_responses, self.num_responses >= 0, "0 or more")
        require("--max-stored-response-bytes", self.num_bytes, self.num_bytes >= 1, "1 or more")
        is_age = math.isfinite(self.age_s) and self.age_s > 0
        require("--max-stored-response-age", self.age_s, is_age, "seconds, over 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSettings:
    """Settings of answers, for requests that do not say it themselves."""

    chat: ChatDefaults = field(default_factory=ChatDefaults)
    response_role: str = "assistant"
    """Role of a reply to a chat that does not continue a message."""
    excludes_unused_tools: bool = False
    """Leaves tools out of the prompt of a chat whose `tool_choice` is none."""
    names_token_ids: bool = False
    """Writes tokens of log-probabilities as `token_id:N`."""
    includes_usage: bool = False
    """Ends every stream with its usage, and has it so far in each chunk."""
    keep_alive_s: float = 45.0
    """Silence of a stream before a comment; 0: there are none. By default less than the minute of most
    balancers, and more than requests wait for a worker, so that one which none has taken still ends with a
    status of its own."""

    def __post_init__(self) -> None:
        is_time = math.isfinite(self.keep_alive_s) and self.keep_alive_s >= 0
        require("--sse-keep-alive-interval", self.keep_alive_s, is_time, "seconds, 0 or more")


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
    """Serves /metrics without a key."""
    shared_prefix_cache: bool = False
    """Lets requests of different keys share cached prefixes."""
    max_body_bytes: int = 4 * 2**20
    strict_fields: bool = False
    """Refuses bodies with unknown fields instead of ignoring these."""
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    stored_responses: ResponseStoreLimits = field(default_factory=ResponseStoreLimits)
    batches: BatchLimits = field(default_factory=BatchLimits)
    root_path: str = ""
    """Prefix that a proxy in front strips from paths."""
    enable_operator_routes: bool = False
    enable_lora_updates: bool = False
    """Serves the routes of adapters even without the other operator routes."""
    enable_tokenizer_info: bool = False
    """Serves /tokenizer_info."""
    allowed_origins: tuple[str, ...] = ()
    """Pages of these origins may call from a browser; `*` is all. Empty: see `keyed_origins`."""
    allow_credentials: bool = False
    allowed_methods: tuple[str, ...] = ("*",)
    allowed_headers: tuple[str, ...] = ("*",)
    middleware: tuple[str, ...] = ()
    """ASGI middleware around all routes, the first one outermost, as `package.module.Name`."""
    serves_docs: bool = True
    """Serves /docs and /openapi.json."""
    answers: AnswerSettings = field(default_factory=AnswerSettings)
    enable_auto_tool_choice: bool = False
    """Lets the model decide to call a tool."""
    tool_call_parser: str = ""
    """Parser of the model's tool calls; empty: none."""
    reasoning_parser: str = ""
    """Parser of the model's reasoning; empty: none."""
    tool_parser_plugin: str = ""
    """A Python file that registers further parsers."""
    reasoning_parser_plugin: str = ""
    """Another one, or the same."""

    @property
    def keyed_origins(self) -> tuple[str, ...]:
        """Origins whose pages may call the routes that need a key; empty: there are no CORS headers.

        By default all may where there are keys: a browser adds none by itself, so a page that sends one has
        been given it.
        """
        return self.allowed_origins or (("*",) if self.api_keys else ())

    def __post_init__(self) -> None:
        for key in self.api_keys:
            if not key or not _TOKEN_CHARACTERS.issuperset(key):
                raise InvalidConfigError("--api-key is of other characters; allowed: visible ASCII")
        require("--max-body-bytes", self.max_body_bytes, self.max_body_bytes >= 1, "1 or more")
        is_root = not self.root_path or (self.root_path.startswith("/") and not self.root_path.endswith("/"))
        require("--root-path", self.root_path, is_root, "a path such as /baton, without a slash at its end")
        if self.enable_auto_tool_choice and not self.tool_call_parser:
            raise InvalidConfigError("--enable-auto-tool-choice is given; allowed: beside --tool-call-parser")
