"""Every error that a user can meet, and its status on each protocol.

`ErrorCode` doubles as the metric label. Whoever raises names the field, the value and what is allowed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class ErrorCode(StrEnum):
    INVALID_REQUEST = "invalid_request"
    NOT_FOUND = "not_found"
    OVERLOADED = "overloaded"
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
    """What a client sees of a code: the name of the gRPC status, the HTTP status, whether to try again."""

    grpc: str
    http: int
    is_retryable: bool


STATUS: Final[dict[ErrorCode, Status]] = {
    ErrorCode.INVALID_REQUEST: Status("INVALID_ARGUMENT", 400, False),
    ErrorCode.NOT_FOUND: Status("NOT_FOUND", 404, False),
    ErrorCode.OVERLOADED: Status("RESOURCE_EXHAUSTED", 429, True),
    ErrorCode.UNAVAILABLE: Status("UNAVAILABLE", 503, True),
    ErrorCode.WORKER_LOST: Status("UNAVAILABLE", 502, True),
    ErrorCode.DEADLINE_EXCEEDED: Status("DEADLINE_EXCEEDED", 504, True),
    ErrorCode.CANCELLED: Status("CANCELLED", 499, False),
    ErrorCode.INCOMPATIBLE_WORKER: Status("FAILED_PRECONDITION", 409, False),
    ErrorCode.INVALID_MODEL: Status("FAILED_PRECONDITION", 500, False),
    ErrorCode.INVALID_CONFIG: Status("INVALID_ARGUMENT", 500, False),
    ErrorCode.INTERNAL: Status("INTERNAL", 500, False),
}
_COME_AGAIN: Final = frozenset({429, 503})
"""HTTP statuses that say when."""


class BatonError(Exception):
    """Base of all errors with a meaning for the user."""

    code: ErrorCode = ErrorCode.INTERNAL
    retry_after_s: float | None = None
    """When it is worth to come again; None where that is not known."""


class InvalidRequestError(BatonError, ValueError):
    """A request that can never be served; the message names the field."""

    code = ErrorCode.INVALID_REQUEST

    def __init__(self, field: str, value: object, allowed: str) -> None:
        shown = repr(value)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        super().__init__(f"{field} is {shown}; allowed: {allowed}")
        self.field = field


class UnprocessableRequestError(InvalidRequestError):
    """A request whose fields are all well-formed, but whose content cannot be processed."""


class ContextLengthError(InvalidRequestError):
    """A prompt that the model's context does not hold."""


class OverloadedError(BatonError):
    """A request that cannot be taken right now."""

    code = ErrorCode.OVERLOADED

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class InvalidModelError(BatonError):
    """A model folder that cannot be loaded."""

    code = ErrorCode.INVALID_MODEL


class InvalidConfigError(BatonError):
    """A setting of a process that cannot hold."""

    code = ErrorCode.INVALID_CONFIG


class IncompatibleWorkerError(BatonError):
    """A worker that cannot be paired with those already registered."""

    code = ErrorCode.INCOMPATIBLE_WORKER


class RequestError(BatonError):
    """The terminal error of an accepted request, as it reaches the caller."""

    def __init__(self, code: ErrorCode, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s


def retry_after(error: BatonError) -> int | None:
    """Whole seconds, at least 1, that a client is told to wait; None where trying again is no use."""
    if STATUS[error.code].http not in _COME_AGAIN:
        return None
    return max(1, math.ceil(error.retry_after_s or 0.0))
