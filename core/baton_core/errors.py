"""Every error that a user can meet, and its status on each protocol.

`ErrorCode` doubles as the metric label. Whoever raises names the field, the value and what is allowed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


class ErrorCode(StrEnum):
    INVALID_REQUEST = "invalid_request"
    ALREADY_EXISTS = "already_exists"
    NOT_FOUND = "not_found"
    OVERLOADED = "overloaded"
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
    UNAVAILABLE = "unavailable"
    WORKER_LOST = "worker_lost"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    CANCELLED = "cancelled"
    INCOMPATIBLE_WORKER = "incompatible_worker"
    INVALID_MODEL = "invalid_model"
    INVALID_CONFIG = "invalid_config"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Status:
    """A code as a client sees it: the gRPC status and the HTTP status."""

    grpc: str
    http: int


STATUS: Final[dict[ErrorCode, Status]] = {
    ErrorCode.INVALID_REQUEST: Status("INVALID_ARGUMENT", 400),
    ErrorCode.ALREADY_EXISTS: Status("ALREADY_EXISTS", 400),
    ErrorCode.NOT_FOUND: Status("NOT_FOUND", 404),
    ErrorCode.OVERLOADED: Status("RESOURCE_EXHAUSTED", 429),
    ErrorCode.RATE_LIMIT_EXCEEDED: Status("RESOURCE_EXHAUSTED", 429),
    ErrorCode.UNAVAILABLE: Status("UNAVAILABLE", 503),
    ErrorCode.WORKER_LOST: Status("UNAVAILABLE", 502),
    ErrorCode.DEADLINE_EXCEEDED: Status("DEADLINE_EXCEEDED", 504),
    ErrorCode.CANCELLED: Status("CANCELLED", 499),
    ErrorCode.INCOMPATIBLE_WORKER: Status("FAILED_PRECONDITION", 409),
    ErrorCode.INVALID_MODEL: Status("FAILED_PRECONDITION", 500),
    ErrorCode.INVALID_CONFIG: Status("INVALID_ARGUMENT", 500),
    ErrorCode.INTERNAL: Status("INTERNAL", 500),
}
_JSON_WORDS: Final = {"True": "true", "False": "false", "None": "null"}
_PYTHON_VALUE: Final = re.compile(
    r"(?<= is )(?:True|False|None)(?=; allowed: )|(?<=; allowed: )(?:True|False|None)\b"
)
_MAX_SHOWN: Final = 80
"""Characters of a value that an error shows."""
_COME_AGAIN: Final = frozenset({429, 503})
"""HTTP statuses that say when."""


class BatonError(Exception):
    """Base of all errors with a meaning for the user."""

    code: ErrorCode = ErrorCode.INTERNAL
    retry_after_s: float | None = None
    """When it is worth to come again; None where that is not known."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Be copied, and sent to another process, by what it has: `__init__` takes other arguments."""
        return _remade, (type(self), self.args), self.__dict__


def _remade(kind: type[BatonError], args: tuple[Any, ...]) -> BatonError:
    return kind.__new__(kind, *args)


class InvalidRequestError(BatonError, ValueError):
    """A request that can never be served; the message names the field."""

    code = ErrorCode.INVALID_REQUEST

    def __init__(self, field: str, value: object, allowed: str) -> None:
        shown = shown_briefly(value)
        super().__init__(f"{field} is {shown}; allowed: {allowed}")
        self.field = field
        self.shown = shown
        """The value, as the message has it."""
        self.allowed = allowed

    def rename(self, field: str) -> None:
        """Name the field as the caller knows it."""
        self.args = (str(self).replace(self.field, field, 1),)
        self.field = field


def in_json_words(message: str) -> str:
    """Return an error's message with the values True, False and None as JSON writes them."""
    return _PYTHON_VALUE.sub(lambda found: _JSON_WORDS[found[0]], message)


def shown_briefly(value: object) -> str:
    """Return the beginning of a value's `repr`, however large the value is."""
    shown = ""
    for piece in _shown_pieces(value):
        shown += piece
        if len(shown) > _MAX_SHOWN:
            return shown[: _MAX_SHOWN - 3] + "..."
    return shown


def _shown_pieces(value: object) -> Iterator[str]:
    match value:
        case str() | bytes():
            yield repr(value[: _MAX_SHOWN + 1])
        case dict() if value:
            for number, (key, item) in enumerate(value.items()):
                yield ", " if number else "{"
                yield from _shown_pieces(key)
                yield ": "
                yield from _shown_pieces(item)
            yield "}"
        case list() | tuple() if value:
            begin, end = ("[", "]") if isinstance(value, list) else ("(", ")" if len(value) > 1 else ",)")
            for number, item in enumerate(value):
                yield ", " if number else begin
                yield from _shown_pieces(item)
            yield end
        case _:
            yield repr(value)


class NameTakenError(InvalidRequestError):
    """A request with the name of a running one.

    Over gRPC it has a status of its own, so that clients that hedge calls can name it as not fatal.
    """

    code = ErrorCode.ALREADY_EXISTS

    def __init__(self, request_id: str) -> None:
        super().__init__("request_id", request_id, "a name that no running request has")


class ContextLengthError(InvalidRequestError):
    """A prompt that the model's context does not hold; it may have 1 to `most` tokens."""

    def __init__(
        self, field: str, num_tokens: int, most: int, max_model_len: int, *, is_least: bool = False
    ) -> None:
        """`is_least`: the prompt has `num_tokens` and more; the rest was not counted."""
        # Clients such as LiteLLM know the error by these words.
        words = f"this model's maximum context length is {max_model_len} tokens"
        given = f"{'at least ' if is_least else ''}{num_tokens} tokens"
        super().__init__(field, given, f"1 to {most} tokens: {words}")
        self.num_tokens = num_tokens
        self.most = most


class OverloadedError(BatonError):
    """A request that cannot be taken right now."""

    code = ErrorCode.OVERLOADED


class InvalidModelError(BatonError):
    """A model folder that cannot be loaded."""

    code = ErrorCode.INVALID_MODEL


class InvalidConfigError(BatonError, ValueError):
    """A setting of a process that cannot hold."""

    code = ErrorCode.INVALID_CONFIG


def require(name: str, value: object, is_allowed: bool, allowed: str) -> None:
    """Refuse a value of the setting `name`, unless it is allowed.

    Raises:
        InvalidConfigError: the message has all three.
    """
    if not is_allowed:
        raise InvalidConfigError(f"{name} is {value!r}; allowed: {allowed}")


class IncompatibleWorkerError(BatonError):
    """A worker that cannot be paired with those already registered, or not be taken by a router at all."""

    code = ErrorCode.INCOMPATIBLE_WORKER

    def __init__(self, message: str, *, is_permanent: bool = False) -> None:
        super().__init__(message)
        self.is_permanent = is_permanent
        """True if the router refuses it however long it waits: not because of workers, which may leave."""


class RequestError(BatonError):
    """The terminal error of an accepted request, as it reaches the caller."""

    def __init__(self, code: ErrorCode, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s


class EngineDeadError(RequestError):
    """The error of calls to an engine that has ended: it has failed, or is shut down."""


def reason_of(error: Exception) -> str:
    """Return an error's message; where that is not written for users, after the name of its type."""
    return str(error) if isinstance(error, BatonError) else f"{type(error).__name__}: {error}"


def retry_after(error: BatonError) -> int | None:
    """Whole seconds, at least 1, that a client is told to wait; None where trying again is no use."""
    if STATUS[error.code].http not in _COME_AGAIN:
        return None
    return max(1, math.ceil(error.retry_after_s or 0.0))
